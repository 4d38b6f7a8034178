"""Whether a backend works: breakers, probes, and who is to blame."""

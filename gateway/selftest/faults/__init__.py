"""The 36 faults that `slipstream selftest` tries."""

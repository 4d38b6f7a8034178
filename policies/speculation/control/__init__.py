"""Whether a draft pays for a target and how far ahead it is to go, by what both were seen to do."""

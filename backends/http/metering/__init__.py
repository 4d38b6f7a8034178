"""Reads off answers as they pass what was used, whether they are whole, and whether they failed."""

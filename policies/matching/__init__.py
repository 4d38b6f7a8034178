"""Which route takes a call."""

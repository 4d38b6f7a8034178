"""Which member takes the next attempt."""

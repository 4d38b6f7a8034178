"""Objects that upstreams keep for who made them: how they are named, and whose they are."""

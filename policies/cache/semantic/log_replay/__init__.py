"""A user's own log through the semantic cache, before it is switched on: what would have been served, how rightly."""

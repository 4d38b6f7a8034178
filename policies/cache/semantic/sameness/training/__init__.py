"""Trains heads and encoder: `python -m policies.cache.semantic.sameness.training`. Nothing here runs in a gateway."""

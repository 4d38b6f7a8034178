"""Decisions about calls, and the backends that carry them out around other backends."""

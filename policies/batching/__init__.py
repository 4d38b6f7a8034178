"""Batching: calls that arrive while a backend is busy are merged into one upstream call."""

"""Calls that pass to a backend without being understood here."""

"""Stored answers in the form that a call asks for."""

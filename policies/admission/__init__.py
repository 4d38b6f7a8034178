"""Admission: which call may go to a backend and when, and what becomes of those that cannot be in time."""

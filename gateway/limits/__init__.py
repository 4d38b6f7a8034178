"""Limits and budgets at the door: what a call is let in with, what its headers say, and who is warned."""

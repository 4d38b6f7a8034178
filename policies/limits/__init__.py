"""Limits and budgets: what a caller may use in a time, reserved before a call and settled after it."""

"""Limits and budgets shared by several processes: counted in Redis by scripts, one round trip a call."""

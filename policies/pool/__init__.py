"""Choosing among backends: weights, priorities, breakers, retries, fallbacks to other routes."""

"""Finds the route that takes a call."""

"""Streams that break off in the middle go on elsewhere."""

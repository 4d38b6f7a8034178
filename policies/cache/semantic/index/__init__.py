"""Vectors that are near a vector: in memory, on disk, in Redis."""

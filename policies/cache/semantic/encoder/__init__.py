"""Texts to vectors: here, in a process of its own, or at a backend."""

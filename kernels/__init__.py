"""Tensors in, tensors out: one file an operation, its Triton kernel beside its torch twin."""

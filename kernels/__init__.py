"""Tensors in, tensors out: a torch twin for each operation, and beside it the Triton kernel, in a `_kernel.py` file."""

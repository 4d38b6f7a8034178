"""Attention over paged keys and values. On CUDA `launch.py` takes every step, by the decode or the prefill kernel."""

"""Attention over paged keys and values. On CUDA `launch.py` takes every step: decode, prefill or cascade kernel."""

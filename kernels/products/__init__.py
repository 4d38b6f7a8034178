"""Matrix products with quantized weights, and the grouped products of experts. On CUDA `launch.py` takes them all."""

"""Matrix products with quantized weights, through `launch.py` on CUDA, and the grouped products of experts."""

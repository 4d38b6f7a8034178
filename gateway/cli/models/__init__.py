"""The commands about models: eval, quantize, size."""

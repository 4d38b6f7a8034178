"""A model folder becomes a decoder: configuration, checkpoint, quantized formats, layers, ranks."""

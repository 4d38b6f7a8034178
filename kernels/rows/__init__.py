"""What goes row by row: norms, activations, rounding, and rotation with the store into pages."""

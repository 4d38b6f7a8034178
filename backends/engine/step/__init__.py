"""One step: which sequences run, as flat tensors, on one device or several."""

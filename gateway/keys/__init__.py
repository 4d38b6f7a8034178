"""Keys that are made while the gateway runs: their store, what a process knows of it, and who may change it."""

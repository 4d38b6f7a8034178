"""The simulated backend: a replica with continuous batching, as arithmetic, and the driver that runs it by a clock."""

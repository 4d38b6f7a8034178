"""A replica that serves a model by continuous batching, as arithmetic: no clock, no tasks."""

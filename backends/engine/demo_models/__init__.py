"""The draft/target pair that ships with the package: its generator, its training, its scores and its weights."""

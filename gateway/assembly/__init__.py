"""The one place that constructs: from a loaded policy to the stages, stacks and stores that a runtime is made of."""

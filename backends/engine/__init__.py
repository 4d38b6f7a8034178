"""The in-process engine: a model folder in, tokens out. Runs without the web stack."""

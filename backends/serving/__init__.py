"""The engine behind the Backend protocol: OpenAI bodies in, OpenAI answers out."""

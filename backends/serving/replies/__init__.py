"""The answers of the engine in OpenAI's shapes, whole and streamed."""

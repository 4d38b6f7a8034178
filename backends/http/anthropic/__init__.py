"""Anthropic's Messages API as a backend for chat completions."""

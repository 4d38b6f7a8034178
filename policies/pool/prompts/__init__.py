"""Which backend holds the beginning of a prompt: by what it was sent, or by its own word."""

"""Where the answers of the semantic cache are kept, and which give way."""

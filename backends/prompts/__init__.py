"""The prompt of a call: its text, and who takes those that begin alike."""

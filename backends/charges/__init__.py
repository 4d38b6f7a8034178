"""What attempts at an upstream used, and what they cost."""

"""How busy each backend is, and what was learned of its speed."""

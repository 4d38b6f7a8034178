"""Whether a stored answer is served: the decisions, and what they go by."""

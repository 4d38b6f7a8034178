"""`slipstream config`: a policy with its defaults filled in, its JSON Schema, its reference page."""

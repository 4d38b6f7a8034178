"""How probably two answers say the same, by their words and tokens: trained heads, and an encoder adapted for them."""

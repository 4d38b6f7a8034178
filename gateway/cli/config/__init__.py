"""`slipstream audit`: what one tenant can find out about another."""

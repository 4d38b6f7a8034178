"""One attempt after or beside another: retries, hedges, patience, and what failed."""

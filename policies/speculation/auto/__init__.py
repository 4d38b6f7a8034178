"""`mode: auto`: for each call the cheapest of the ways that a route allows which is in time and good enough."""

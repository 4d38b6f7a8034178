"""Mirror to switch: copies of calls go to a candidate, until it is known whether it may take over."""

"""The endpoints: what each path reads, checks and answers."""

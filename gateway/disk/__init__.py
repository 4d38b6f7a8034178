"""What outlives a restart on this machine's disk: a SQLite file, and room held for what is on its way."""

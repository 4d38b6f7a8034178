"""What outlives a restart on this machine's disk: one SQLite file."""

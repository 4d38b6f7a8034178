"""What is recorded of each request: its exchange, its log line, its trace, whether it was in time."""

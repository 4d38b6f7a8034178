"""What is told of each request: its exchange, the log line, the trace."""

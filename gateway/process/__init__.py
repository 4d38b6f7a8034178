"""The process around the application: sockets, workers, signals, threads."""

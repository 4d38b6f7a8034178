"""HTTP in and out, assembly, command line."""

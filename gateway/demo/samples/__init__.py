"""`slipstream samples`: made-up files on which the examples of other commands run as they are written."""

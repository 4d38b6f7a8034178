"""`type: scripted`: answers that follow from the request alone."""

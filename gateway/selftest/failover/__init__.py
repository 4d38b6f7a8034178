"""Sixteen ways in which a provider fails a call that could go on: the stage, the scenarios, and who tries them."""

"""Metrics: what is counted, copied from those who count, and rendered for Prometheus."""

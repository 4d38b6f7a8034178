"""Quotas that upstreams set: what their answers tell of what is left, and which of a backend's keys a call takes."""

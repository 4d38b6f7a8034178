"""Requests in and answers out: connections, heads, bodies, streams, keys."""

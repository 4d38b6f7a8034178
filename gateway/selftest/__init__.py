"""`slipstream selftest`: lying upstreams and hostile clients against a copy of a policy, on this machine."""

"""What a policy says of keys: what each of them may do; `gateway/http/auth.py` holds callers to it."""

"""The page of the policy: what is in force, what the last change was, and what another one would do."""

"""What a policy says of the dashboard: who may sign in at a provider; `gateway/dashboard` carries it out."""

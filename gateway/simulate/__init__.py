"""`slipstream simulate`: the production stacks, replaying a trace in virtual time."""

"""Who goes first: the priority that a call has here, and the numbers by which servers of models order theirs."""

"""The learned router: from a prompt to how much more often a large model is right about it than a small one."""

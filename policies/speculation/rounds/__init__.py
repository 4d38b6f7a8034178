"""Drafts by rounds, for targets that nothing can be pushed to: propose, have it checked, go on behind what is right."""

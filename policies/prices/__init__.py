"""What tokens cost: exact prices by kind, and where they come from."""

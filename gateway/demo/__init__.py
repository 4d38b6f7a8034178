"""A made-up ledger, for who wants to see the dashboard before there is traffic: believable, and marked as made up."""

"""What a policy says of the ledger; `gateway/ledger` carries it out."""

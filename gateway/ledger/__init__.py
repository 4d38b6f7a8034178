"""The ledger: a row for every call, in a journal and then in a store, exactly once, and what the rows add up to."""

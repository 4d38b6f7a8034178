"""Transactions in SQLite or PostgreSQL, asked alike: what the ledger and the keys are kept in."""

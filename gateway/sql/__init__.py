"""Transactions in SQLite or PostgreSQL, asked alike."""

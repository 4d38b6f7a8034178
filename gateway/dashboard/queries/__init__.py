"""What the dashboard asks of the ledger: each module answers for one part of a page."""

"""Who may go to a backend, when, and what becomes of those who cannot be in time."""

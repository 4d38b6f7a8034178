"""What decisions learn from the answers of backends, and where that is kept."""

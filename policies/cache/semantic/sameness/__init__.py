"""The probability that two answers say the same, from their words and their tokens' vectors: a trained head."""

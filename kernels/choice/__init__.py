"""Choosing tokens from logits: penalties, filters, draws, and drafts verified."""

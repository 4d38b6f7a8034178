"""Speculation: a small backend goes first, or beside, and a large one decides; each mode says what it promises."""

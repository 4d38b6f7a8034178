"""Amounts for people: whole pico-dollars inside, decimal text of dollars at the edge, and no float on the way."""

from __future__ import annotations

from policies.prices.price import PICO_PER_DOLLAR


def usd_text(pico: int | None) -> str | None:
    """Dollars, exactly, with no more digits than it has: 1_250_000_000 is 0.00125. What is not known stays so."""
    if pico is None:
        return None
    whole, rest = divmod(abs(pico), PICO_PER_DOLLAR)
    text = f"{whole}.{rest:012d}".rstrip("0").rstrip(".")
    return f"-{text}" if pico < 0 else text

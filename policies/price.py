"""What tokens cost, in whole pico-dollars: no sum of prices is rounded, however many there are."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from backends.protocol import Usage

PICO_PER_DOLLAR = 10**12
_PICO_PER_TOKEN = 10**6
"""A dollar for a million tokens is a millionth of a dollar for each."""


class Price(msgspec.Struct, frozen=True):
    """What a member takes for a token, by its kind, in pico-dollars (1e-12)."""

    input: int
    output: int
    cached_input: int

    def amount(self, usage: Usage) -> int:
        """Pico-dollars for an attempt that used so much."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        uncached = usage.prompt_tokens - cached
        return uncached * self.input + cached * self.cached_input + usage.completion_tokens * self.output

    def expected(self, tokens: int, uncached: int, output: float) -> float:
        """The same of a prompt of `tokens`, all but `uncached` of them kept, with an answer of about so many."""
        return uncached * self.input + (tokens - uncached) * self.cached_input + output * self.output


def pico_per_token(per_1m: float) -> int:
    """What a token costs of which a million cost so much. Raises: ValueError where that is no whole number."""
    # As it is written, in the fewest digits that mean this number: 0.1 and not what binary makes of it.
    pico = Decimal(repr(per_1m)) * _PICO_PER_TOKEN
    if pico != int(pico):
        raise ValueError("a price for a million tokens has at most six decimals")
    return int(pico)

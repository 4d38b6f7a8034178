"""What tokens cost."""

from __future__ import annotations

import msgspec


class Price(msgspec.Struct, frozen=True):
    """What a member takes for a million tokens."""

    input_per_1m: float = 0.0
    output_per_1m: float = 0.0
    cached_input_per_1m: float | None = None
    """None: as much as for what is not cached."""

    def of(self, tokens: int, uncached: int, output: float) -> float:
        """A million times what a prompt of `tokens` costs, all but `uncached` of them kept, with its answer."""
        cached_input = self.input_per_1m if self.cached_input_per_1m is None else self.cached_input_per_1m
        return uncached * self.input_per_1m + (tokens - uncached) * cached_input + output * self.output_per_1m

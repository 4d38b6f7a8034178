"""What a backend can do that scores a text token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Scorer(Protocol):
    """A backend that can also score a continuation: what speculation across backends needs."""

    async def score(self, prefix: Sequence[int], continuation: Sequence[int]) -> Sequence[int]:
        """The target's greedy choice at each position: `len(continuation) + 1` token ids."""

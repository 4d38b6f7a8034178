"""How often an upstream says the same in other words, and what it means, therefore, that two answers differ at all.

A comparison is calibrated on pairs that are worded anew nearly always. Where an upstream has one wording for a thing,
two answers that differ in a word are no longer in doubt: if they said the same they would most likely be equal.
"""

from __future__ import annotations

import math

from policies.cache.semantic.sameness.forms import SURE

_KEPT = 0.995
"""Of what was counted, with each pair: some 200 are remembered, so that a new model's wordings are soon known."""
_BELIEVED = 4.0
"""Pairs in other words that are believed before the first."""


class Rewording:
    """Of one upstream, as its answers are compared."""

    __slots__ = ("_num_equal", "_num_reworded")

    def __init__(self) -> None:
        self._num_equal = self._num_reworded = 0.0

    @property
    def share(self) -> float:
        """0..1: of pairs that say the same, those that say it in other words."""
        reworded = self._num_reworded + _BELIEVED
        return reworded / (self._num_equal + reworded)

    def note_equal(self) -> None:
        """Two answers were the same to the letter."""
        self._note(is_equal=True, is_reworded=False)

    def weighed(self, log_odds: float) -> float:
        """The log odds of saying the same, with what is known of the upstream, and with this pair from the next on."""
        is_equal = log_odds >= SURE
        found = log_odds if is_equal else log_odds + math.log(self.share)
        self._note(is_equal=is_equal, is_reworded=0 < log_odds < SURE)
        return found

    def _note(self, *, is_equal: bool, is_reworded: bool) -> None:
        self._num_equal = _KEPT * self._num_equal + is_equal
        self._num_reworded = _KEPT * self._num_reworded + is_reworded

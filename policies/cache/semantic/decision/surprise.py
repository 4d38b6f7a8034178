"""Whether a backend's answers have begun to change, by how often they differ though no neighbour explains why.

Each changed answer shows by itself after two labels against it. All of them together show sooner: a cumulative sum
(Page, 1954) weighs whether such labels come as often as usual, or so often as where an eighth of what was right has
changed. What is usual is learned: it is much where new things are asked all the time.
"""

from __future__ import annotations

import math

import msgspec

_CHANGED = 0.12
"""Of the labels that would have been as expected."""
_NEWS = 4.0
"""Log odds: some three surprises among fifteen labels where they are seldom."""
_USUAL_LABELS = 300
"""So many are remembered for what is usual."""
_LEAST_USUAL = 0.02


class SurpriseState(msgspec.Struct):
    """What is kept over a restart: the share of labels that surprise, and the sum of what the latest tell."""

    usual: float = 0.1
    told: float = 0.0

    def note(self, *, is_surprise: bool) -> bool:
        """A label on an answer that is known well; whether it is the one that says that the backend has changed."""
        usual = max(self.usual, _LEAST_USUAL)
        weight = 1.0 + _CHANGED * (1.0 - usual) / usual if is_surprise else 1.0 - _CHANGED
        self.told = max(0.0, self.told + math.log(weight))
        self.usual += (is_surprise - self.usual) / _USUAL_LABELS
        if self.told <= _NEWS:
            return False
        self.told = 0.0
        return True

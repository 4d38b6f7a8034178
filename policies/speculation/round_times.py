"""What a target's steps and a draft's tokens take, and the way between: each as it was seen lately.

round of k = k x draft token + way + step x (1 + row x k)        step and row by how full the target is
"""

from __future__ import annotations

_WEIGHT = 0.1
"""Of a token alone, or of a round."""
_FAR_OFF = 1.5
"""So many times as much, or as little: something has changed, and what was known counts half."""
_MOST = 4.0
"""Times what is known: what takes longer is a stall, and says no more than that."""
_FIRST_ROW = 0.05
"""What a token to verify adds to a step, as a share of it, before it was seen."""
_NUM_LOADS = 12
"""Loads that are told apart, by powers of two."""


class RoundTimes:
    """Of one target and its draft. `load`: answers that the target writes at once, 1 where nobody knows."""

    __slots__ = ("_alone", "_row", "draft_token_s", "way_s")

    def __init__(self) -> None:
        self._alone = [0.0] * _NUM_LOADS
        self._row: list[float | None] = [None] * _NUM_LOADS
        self.draft_token_s = 0.0
        self.way_s: float | None = None
        """What a round takes beside draft and step; None before the first one."""

    def alone_s(self, load: int = 1) -> float:
        """A token without a draft; that of the nearest load which was seen, 0 where none was."""
        wanted = _class_of(load)
        known = [place for place, seconds in enumerate(self._alone) if seconds]
        return self._alone[min(known, key=lambda place: abs(place - wanted))] if known else 0.0

    def step_s(self, num_drafted: int, load: int = 1) -> float:
        """A step that verifies so many tokens."""
        row = self._row[_class_of(load)]
        return self.alone_s(load) * (1 + (_FIRST_ROW if row is None else row) * num_drafted)

    def round_s(self, num_drafted: int, load: int = 1) -> float:
        """A round with a draft of so many tokens; without one a token alone. Only where `way_s` is known."""
        step_s = self.step_s(num_drafted, load)
        return step_s + num_drafted * self.draft_token_s + (self.way_s or 0.0) if num_drafted else step_s

    def add_alone(self, num_tokens: int, seconds: float, load: int = 1) -> None:
        """So many tokens have come one by one."""
        place = _class_of(load)
        known, found = self._alone[place], seconds / num_tokens
        weight = 1 - (1 - _WEIGHT) ** num_tokens if known else 1.0
        self._alone[place] += weight * (min(found, _MOST * known if known else found) - known)

    def add_round(
        self, num_drafted: int, *, draft_s: float, verify_s: float, step_s: float | None = None, load: int = 1
    ) -> None:
        """A round: seconds until the draft was there, from then to the verdict, and of the step where it was told."""
        alone_s = self.alone_s(load)
        if step_s is not None and alone_s:
            place = _class_of(load)
            row, known = min(max(0.0, step_s / alone_s - 1) / num_drafted, _MOST), self._row[place]
            self._row[place] = row if known is None else known + _WEIGHT * (row - known)
        self.draft_token_s = _moved(self.draft_token_s, draft_s / num_drafted)
        way_s = max(0.0, verify_s - (self.step_s(num_drafted, load) if step_s is None else step_s))
        self.way_s = way_s if self.way_s is None else _moved(self.way_s, way_s)


def _class_of(load: int) -> int:
    return min(max(1, load).bit_length(), _NUM_LOADS) - 1


def _moved(known: float, found: float) -> float:
    if not known:
        return found
    is_far_off = not known / _FAR_OFF <= found <= known * _FAR_OFF
    return known + (0.5 if is_far_off else _WEIGHT) * (found - known)

"""What a target's steps and a draft's tokens take, and the way between: each as it was seen lately.

verdict on k = way + step x (1 + row x k)        step and row by how full the target is
draft of k   = first + (k - 1) x token, where it begins; what is left of (k + 1) x token, where it has gone on meanwhile
"""

from __future__ import annotations

from policies.speculation.control.alone_pace import AlonePace

_WEIGHT = 0.1
"""Of a round."""
_FAR_OFF = 1.5
"""So many times as much, or as little: something has changed, and what was known counts half."""
_ENOUGH = 3
_MOST = 4.0
"""Times what is known: what takes longer is a stall, and says no more than that."""
_FIRST_ROW = 0.05
"""What a token to verify adds to a step, as a share of it, before it was seen."""
_NUM_LOADS = 12
"""Loads that are told apart, by powers of two."""


class _Lately:
    """A time as it was seen lately: of the last three the middle one counts, so that a late one alone says nothing."""

    __slots__ = ("_last", "seconds")

    def __init__(self) -> None:
        self._last: list[float] = []
        self.seconds = 0.0

    @property
    def is_known(self) -> bool:
        """Whether it was seen often enough to go by."""
        return len(self._last) == _ENOUGH

    def doubt(self) -> None:
        """It has to be seen as often again."""
        self._last = []

    def add(self, seconds: float) -> None:
        """It was seen."""
        self._last = [*self._last, seconds][-_ENOUGH:]
        middle, known = sorted(self._last)[(len(self._last) - 1) // 2], self.seconds
        is_far_off = not known / _FAR_OFF <= middle <= known * _FAR_OFF
        weight = 1.0 if not known else 0.5 if is_far_off else _WEIGHT
        self.seconds += weight * (middle - known)


class RoundTimes:
    """Of one target and its draft. `load`: answers that the target writes at once, 1 where nobody knows."""

    __slots__ = ("_alone", "_first", "_row", "_token", "_way")

    def __init__(self) -> None:
        self._alone = [AlonePace() for _ in range(_NUM_LOADS)]
        self._row: list[float | None] = [None] * _NUM_LOADS
        self._first, self._token = _Lately(), _Lately()
        """Of a draft: until its first token, and each further one."""
        self._way = _Lately()
        """What a verdict takes beside the target's step."""

    @property
    def is_known(self) -> bool:
        """Whether enough rounds were seen to say what others would take."""
        return self._way.is_known

    def doubt(self) -> None:
        """They may be others now: a few rounds have to be seen before `is_known` is true again."""
        self._way.doubt()

    def alone_s(self, load: int = 1) -> float:
        """A token without a draft; that of the nearest load which was seen, 0 where none was."""
        wanted = _class_of(load)
        known = [place for place, pace in enumerate(self._alone) if pace.s_per_token]
        return self._alone[min(known, key=lambda place: abs(place - wanted))].s_per_token if known else 0.0

    def step_s(self, num_drafted: int, load: int = 1) -> float:
        """A step that verifies so many tokens."""
        row = self._row[_class_of(load)]
        return self.alone_s(load) * (1 + (_FIRST_ROW if row is None else row) * num_drafted)

    def round_s(self, num_drafted: int, load: int = 1, *, goes_on: float = 0.0) -> float:
        """A round with a draft of so many tokens; without one a token alone. Only where that is known.

        `goes_on`: how often such a draft need not begin anew, 0..1.
        """
        if not num_drafted:
            return self.step_s(0, load)
        verdict_s = self.verdict_s(num_drafted, load)
        left_s = max(0.0, (num_drafted + 1) * self._token.seconds - verdict_s)
        return verdict_s + goes_on * left_s + (1 - goes_on) * self.wait_s(num_drafted)

    def wait_s(self, num_drafted: int, num_ready: int = 0) -> float:
        """Until a draft has said so many tokens: behind those that it has said already, or begun anew."""
        token_s = self._token.seconds
        if num_ready:
            return max(0, num_drafted - num_ready) * token_s
        return self._first.seconds + (num_drafted - 1) * token_s

    def verdict_s(self, num_drafted: int, load: int = 1) -> float:
        """From a draft of so many tokens to its verdict."""
        return self.step_s(num_drafted, load) + self._way.seconds

    def add_alone(self, num_tokens: int, seconds: float, load: int = 1) -> None:
        """So many tokens have come one by one."""
        self._alone[_class_of(load)].add(num_tokens, seconds)

    def add_draft(self, first_s: float | None, num_more: int, more_s: float) -> None:
        """A draft has said its first token within `first_s`, where that tells how fast it is, and so many more."""
        if first_s is not None:
            self._first.add(first_s)
        if num_more:
            self._token.add(more_s / num_more)

    def add_round(self, num_drafted: int, verify_s: float, *, step_s: float | None = None, load: int = 1) -> None:
        """A round: seconds from the draft to the verdict, and of the target's step where that was told."""
        alone_s = self.alone_s(load)
        if step_s is not None and alone_s:
            place = _class_of(load)
            row, known = min(max(0.0, step_s / alone_s - 1) / num_drafted, _MOST), self._row[place]
            self._row[place] = row if known is None else known + _WEIGHT * (row - known)
        self._way.add(max(0.0, verify_s - (self.step_s(num_drafted, load) if step_s is None else step_s)))


def _class_of(load: int) -> int:
    return min(max(1, load).bit_length(), _NUM_LOADS) - 1

"""Which way of having guesses checked a target is asked for: the first wanted one that it has not refused lately."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from backends.clock import Clock
from policies.speculation.settings import VerifyMethod

_REFUSED_FOR_S = 300.0
_MOST_MALFORMED = 3


class Methods:
    """Of one target. `able`: those that a backend of its kind may know, in order of preference."""

    def __init__(self, able: Sequence[VerifyMethod], clock: Clock) -> None:
        self._able = tuple(able)
        self._clock = clock
        self._refused_until: dict[VerifyMethod, float] = {}
        self._num_malformed = 0

    def now(self, fitting: Collection[VerifyMethod]) -> VerifyMethod | None:
        """The one to take of those that fit a call; None where all are refused."""
        time = self._clock.now()
        return next(
            (each for each in self._able if each in fitting and self._refused_until.get(each, time) <= time), None
        )

    def judge(self, method: VerifyMethod, *, is_right: bool) -> None:
        """A verdict could be one, or not; after three in a row that could not, it is refused."""
        self._num_malformed = 0 if is_right else self._num_malformed + 1
        if self._num_malformed >= _MOST_MALFORMED:
            self._num_malformed = 0
            self.refuse(method)

    def refuse(self, method: VerifyMethod) -> None:
        """The target does not know it, or answers it wrongly: it is not asked so again for five minutes."""
        self._refused_until[method] = self._clock.now() + _REFUSED_FOR_S

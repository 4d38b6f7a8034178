"""Which way of having guesses checked a target is asked for: the first wanted one that it has not refused lately."""

from __future__ import annotations

from collections.abc import Sequence

from backends.clock import Clock
from policies.speculation.settings import VerifyMethod

_REFUSED_FOR_S = 300.0


class Methods:
    """Of one target. `able`: those that a backend of its kind may know, in order of preference."""

    def __init__(self, able: Sequence[VerifyMethod], clock: Clock) -> None:
        self._able = tuple(able)
        self._clock = clock
        self._refused_until: dict[VerifyMethod, float] = {}

    @property
    def now(self) -> VerifyMethod | None:
        """The one to take; None where all are refused."""
        time = self._clock.now()
        return next((each for each in self._able if self._refused_until.get(each, time) <= time), None)

    def refuse(self, method: VerifyMethod) -> None:
        """The target does not know it, or answers it wrongly: it is not asked so again for five minutes."""
        self._refused_until[method] = self._clock.now() + _REFUSED_FOR_S

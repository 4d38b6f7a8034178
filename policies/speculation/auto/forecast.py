"""What one way of answering a call is expected to cost, to take and to be worth; pure arithmetic.

Times are log-normal around what is predicted: how far predictions were off lately says how wide.
"""

from __future__ import annotations

import math
from typing import NamedTuple

_WEIGHT = 0.05
_FIRST_SPREAD = 0.25
_LEAST_SPREAD = 0.05
_MOST_OFF = 3.0
"""In logarithms: a prediction that was twenty times off says no more than that it was far off."""
_LEAST_S = 1e-4


class Forecast(NamedTuple):
    """Of one way and one call. `p_in_slo` is None while too little of it was seen.

    `cost`: pico-dollars. `first_s`, `gap_s`: expected seconds to the first token and between the others. `late_s`:
    expected seconds beyond the limit of the first token. `loss`: how much less often the answer is right than the
    target's, as a share of that; 0 where it is the target's or as good. `in_flight`: calls that go this way now.
    """

    name: str
    cost: float
    p_in_slo: float | None
    first_s: float = 0.0
    gap_s: float = 0.0
    late_s: float = 0.0
    loss: float = 0.0
    in_flight: int = 0

    def why(self) -> str:
        """In words."""
        time = "too little seen" if self.p_in_slo is None else f"in time for {100 * self.p_in_slo:.0f} %"
        loss = f", {100 * self.loss:.1f} % less right" if self.loss > 0 else ""
        return f"{self.name}: {self.cost * 1e-12:.6f} USD, {time}{loss}"


class TimeSpread:
    """How far predictions of one time were off: mean and spread of the logarithm of observed over predicted."""

    __slots__ = ("_mean", "_square", "spread")

    def __init__(self) -> None:
        self._mean = 0.0
        self._square = _FIRST_SPREAD**2
        self.spread = _FIRST_SPREAD
        """Standard deviation of the logarithm."""

    def observe(self, predicted_s: float, seconds: float) -> None:
        """What was predicted has taken so long."""
        off = math.log(max(seconds, _LEAST_S) / max(predicted_s, _LEAST_S))
        off = min(max(off, -_MOST_OFF), _MOST_OFF)
        self._mean += _WEIGHT * (off - self._mean)
        self._square += _WEIGHT * ((off - self._mean) ** 2 - self._square)
        self.spread = max(_LEAST_SPREAD, math.sqrt(self._square))

    def share_within(self, predicted_s: float, limit_s: float) -> float:
        """The probability that it takes no longer than `limit_s`."""
        if limit_s <= 0:
            return 0.0
        # Asked several times of each call, so without the calls that can be done without.
        expected_s = predicted_s if predicted_s > _LEAST_S else _LEAST_S
        deviations = (math.log(limit_s / expected_s) - self._mean) / self.spread
        return 0.5 * (1 + math.erf(deviations * 0.7071067811865476))

    def expected_over_s(self, predicted_s: float, limit_s: float) -> float:
        """Seconds beyond `limit_s`, in the mean, those of times within it being 0."""
        limit_s, spread = max(limit_s, _LEAST_S), self.spread
        middle = math.log(max(predicted_s, _LEAST_S)) + self._mean
        far = (middle - math.log(limit_s)) / spread
        return math.exp(middle + spread * spread / 2) * _normal(far + spread) - limit_s * _normal(far)


def _normal(deviations: float) -> float:
    """The standard normal distribution up to there."""
    return 0.5 * (1 + math.erf(deviations * 0.7071067811865476))

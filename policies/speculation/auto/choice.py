"""Which of several forecasts is taken: the least of money, likely lateness and lost quality, at learned prices.

    cost  +  price of a call late x (1 - P in time)  +  price of quality x loss

Both prices are those at which all calls together keep what was asked for: lateness is dearer after calls that were
late, quality is dearer while little of it may still be lost. So each is spent where it saves most. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from policies.speculation.auto.forecast import Forecast

_FLAPS_WITHIN = 1.1
"""What was taken last is taken again where it comes to less than this many times the least."""
_LEVEL = 200
"""Calls whose part of the quality is kept in the purse; twice as many at most."""
_STEEP = 1.0
_RATIO_STEP = 0.01
_LATE_STEP = 0.02
_FIRST_LATE, _LEAST_LATE = 20.0, 0.1
"""In calls' costs."""
_COST_STEP = 0.02


class QualityPurse:
    """Quality that answers may lack: each call that can be judged brings some, each that a draft answers costs its own.

    It never owes: all answers together are as good as was asked for at every moment, as far as losses are what was
    expected of them.
    """

    __slots__ = ("_log_ratio", "_per_call", "left")

    def __init__(self, per_call: float) -> None:
        """`per_call`: how much less right, as a share, answers may be in the mean."""
        self._per_call = per_call
        self._log_ratio: float | None = None
        self.left = 0.0

    def earn(self, saves: float, loss: float) -> None:
        """A call has come that can be judged; a draft would save so many pico-dollars and lose so much."""
        self.left = min(self.left + self._per_call, 2 * _LEVEL * self._per_call)
        if loss > 0 < saves:
            ratio = math.log(saves / loss)
            known = self._log_ratio
            self._log_ratio = ratio if known is None else known + _RATIO_STEP * (ratio - known)

    def spend(self, loss: float) -> None:
        """The draft is to answer, and so much less well. Where it is better than the target nothing is won."""
        self.left -= max(0.0, loss)

    def give_back(self, loss: float) -> None:
        """It has not answered after all."""
        self.left += max(0.0, loss)

    @property
    def price(self) -> float:
        """Pico-dollars for all of a call's quality: what is usual at half a purse, and more the emptier it is."""
        level = _LEVEL * self._per_call
        if self._log_ratio is None or not level:
            return 0.0
        return math.exp(min(self._log_ratio + _STEEP * (1 - self.left / level), 700.0))


class LatenessPrice:
    """What it is worth that a call is in time: it falls with each one that is, and rises with each that is not."""

    __slots__ = ("_cost", "_late_part", "_price")

    def __init__(self, share: float) -> None:
        """`share` of all calls are to be in time, less than 1."""
        self._late_part = 1 - share
        self._price = _FIRST_LATE
        self._cost = 0.0

    @property
    def price(self) -> float:
        """Pico-dollars for a call that is late."""
        return self._price * self._cost

    def asked(self, cost: float) -> None:
        """A call has come that costs so much at the target."""
        self._cost += (_COST_STEP if self._cost else 1.0) * (cost - self._cost)

    def ended(self, *, was_in_time: bool) -> None:
        """A call is over."""
        missed = 0.0 if was_in_time else 1 / self._late_part
        self._price = min(max(self._price * math.exp(_LATE_STEP * (missed - 1)), _LEAST_LATE), 1e6)


def choose(
    forecasts: Sequence[Forecast], purse: QualityPurse, late: LatenessPrice, *, late_s_price: float, last: str
) -> Forecast:
    """The forecast that is taken; the first is the route's own backends, which are taken where nothing is known.

    `late_s_price`: pico-dollars for a second beyond the limit. `last`: the way that was taken before.
    """
    quality_price, late_price = purse.price, late.price

    def comes_to(each: Forecast) -> float:
        lateness = late_price * (1 - (each.p_in_slo or 0.0)) + late_s_price * each.late_s
        return each.cost + lateness + (quality_price * each.loss if each.loss > 0 else 0.0)

    able = [each for each in forecasts if each.p_in_slo is not None and (each.loss <= 0 or each.loss <= purse.left)]
    if not able:
        return forecasts[0]
    found = [comes_to(each) for each in able]
    best = able[found.index(min(found))]
    for each, total in zip(able, found, strict=True):
        # How good a draft's answer will be differs from call to call, so whoever took it last says nothing.
        if each.name == last and max(each.loss, best.loss) <= 0 and total <= _FLAPS_WITHIN * min(found):
            return each
    return best

"""How many tokens to draft: what acceptance and step times, as measured, make the most tokens a second.

With acceptance a per position, k drafts bring 1 + a + .. + a^k tokens a step on average (Leviathan et al., 2023,
section 3.1); they cost k steps of the draft model and k more rows in the target's step.
"""

from __future__ import annotations

from dataclasses import dataclass

_TIME_WEIGHT, ALONE_WEIGHT = 0.02, 0.1
"""Of a new measurement: the older ones fade over some 50 steps, or 10 of those that are rare while drafts are tried."""
_OUTLIER = 4.0
"""A step that takes this many times what was expected says something of the machine, not of the step."""
_PURSE_SHARE = 0.01
_PURSE_OUTLIER = 16.0
"""Steps alone; what takes more than this and twice what catching up was to take is the machine's doing."""
_PURSE_TRY, _PURSE_MOST = 4.0, 8.0
"""Steps alone whose time may be lost by a try, and by a change after good times."""


class StepTimeFit:
    """Seconds of a step as a line over its rows, fitted to the latest measurements.

    Before rows have varied it takes the step to cost the same for any number of them, which invites trying more.
    `weight` is that of a new measurement, once there are enough.
    """

    def __init__(self, weight: float = _TIME_WEIGHT) -> None:
        self._weight = weight
        self._count = 0
        self._rows = self._seconds = 0.0
        self._variance = self._covariance = 0.0

    @property
    def is_known(self) -> bool:
        """Whether anything was measured, by a clock that moves."""
        return self._seconds > 0

    def add(self, rows: int, seconds: float) -> None:
        """Notes one measured step."""
        self._count += 1
        weight = max(1 / self._count, self._weight)
        if self._count > 4:
            seconds = min(seconds, _OUTLIER * self.predict(rows))
        rows_off, seconds_off = rows - self._rows, seconds - self._seconds
        self._rows += weight * rows_off
        self._seconds += weight * seconds_off
        self._variance = (1 - weight) * (self._variance + weight * rows_off * rows_off)
        self._covariance = (1 - weight) * (self._covariance + weight * rows_off * seconds_off)

    def predict(self, rows: int) -> float:
        """Seconds of a step with so many rows; never less than a tenth of the mean."""
        # Below a variance of 0.01 the slope is noise over noise.
        slope = max(self._covariance / self._variance, 0.0) if self._variance > 0.01 else 0.0
        return max(self._seconds + slope * (rows - self._rows), 0.1 * self._seconds)


class Purse:
    """Whether an engine may speculate: as long as what that has lost is covered by what it may cost.

    A share of the time that steps take alone comes in, and what speculation saves, up to a bound; what it loses goes
    out. Where nothing is left it pauses until there is enough for another try. So over any time it loses no more than
    that share of it and the bound, whatever the estimates say. Times are in seconds.
    """

    __slots__ = ("_balance", "is_open")

    def __init__(self) -> None:
        self._balance: float | None = None
        self.is_open = True

    @property
    def balance_s(self) -> float:
        """What may be lost now."""
        return self._balance or 0.0

    def earn(self, alone_s: float) -> None:
        """A step was made alone."""
        if self._balance is not None:
            self._balance = min(self._balance + _PURSE_SHARE * alone_s, _PURSE_MOST * alone_s)
            self.is_open |= self._balance >= _PURSE_TRY * alone_s

    def settle(self, worth_s: float, spent_s: float, alone_s: float, catch_up_s: float = 0.0) -> None:
        """A step with proposals took `spent_s` for tokens that take `worth_s` alone; a step alone takes `alone_s`, and
        catching up with texts was to take `catch_up_s`.
        """
        before = _PURSE_TRY * alone_s if self._balance is None else self._balance
        spent_s = min(spent_s, _PURSE_OUTLIER * alone_s + 2 * catch_up_s)
        self._balance = min(before + worth_s - spent_s, _PURSE_MOST * alone_s)
        if self._balance < 0:
            self.is_open = False


class Acceptance:
    """The share of proposed tokens that were accepted, of those that were judged; old ones fade.

    `start` is what to believe before the first, `weight` that of one judged token.
    """

    __slots__ = ("_weight", "rate")

    def __init__(self, start: float, weight: float) -> None:
        self.rate = start
        self._weight = weight

    def add(self, num_proposed: int, num_accepted: int) -> None:
        """Notes one verification. Tokens behind the first rejected one were never judged."""
        num_judged = min(num_accepted + 1, num_proposed)
        kept = (1 - self._weight) ** num_judged
        self.rate = kept * self.rate + (1 - kept) * num_accepted / num_judged


@dataclass(frozen=True, slots=True)
class Length:
    """A number of tokens to draft, and the tokens a second that one sequence can expect of it.

    `least`: the probability that all drafts so far are accepted below which one more takes longer than it saves.
    """

    num_draft: int
    tokens_per_s: float
    least: float = 0.0


def best_draft(
    rate: float, most: int, *, num_sequences: int, target: StepTimeFit, draft: StepTimeFit | None = None
) -> Length:
    """The best number of drafts, 0..`most`, where each of `num_sequences` drafts as many.

    `rate`: the acceptance to expect, 0..1. `draft` is the time of the draft model's steps, None where drafts cost
    nothing.
    """
    alone_s = target.predict(num_sequences)
    best = Length(0, 1 / alone_s)
    draft_s = 0.0 if draft is None else draft.predict(num_sequences)
    more_s = draft_s + target.predict(2 * num_sequences) - alone_s
    expected, power = 1.0, 1.0
    for num_draft in range(1, most + 1):
        power *= rate
        expected += power
        step_s = target.predict(num_sequences * (1 + num_draft)) + num_draft * draft_s
        if expected / step_s > best.tokens_per_s:
            best = Length(num_draft, expected / step_s, more_s * expected / step_s / rate)
    return best

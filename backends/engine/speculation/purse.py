"""What speculation may lose: nothing that it has not saved before, but for a small share of the time."""

from __future__ import annotations

_MOST_SHARE, _LEAST_SHARE = 0.01, 0.0025
"""Of the time that steps take alone, to find out with: halved with each try that fails, all again in good times."""
_PURSE_OUTLIER = 16.0
"""Steps alone; what takes more than this and twice what catching up was to take is the machine's doing."""
_PURSE_TRY, _PURSE_MOST = 4.0, 8.0
"""Steps alone whose time may be lost by a try, and by a change after good times."""


class Purse:
    """Whether an engine may speculate: as long as what that has lost is covered by what it may cost.

    A share of the time that steps take alone comes in, and what speculation saves, up to a bound; what it loses goes
    out. Where nothing is left it pauses until there is enough for another try, and longer each time that it fails. So
    over any time it loses no more than that share of it and the bound, whatever the estimates say. Times are seconds.
    """

    __slots__ = ("_balance", "_share", "is_open")

    def __init__(self) -> None:
        self._balance: float | None = None
        self._share = _MOST_SHARE
        self.is_open = True

    @property
    def balance_s(self) -> float:
        """What may be lost now."""
        return self._balance or 0.0

    def earn(self, alone_s: float) -> None:
        """A step was made alone."""
        if self._balance is not None:
            self._balance = _topped_up(self._balance, self._share * alone_s, _PURSE_MOST * alone_s)
            self.is_open |= self._balance >= _PURSE_TRY * alone_s

    def settle(self, worth_s: float, spent_s: float, alone_s: float, catch_up_s: float = 0.0) -> None:
        """A step with proposals took `spent_s` for tokens that take `worth_s` alone; a step alone takes `alone_s`, and
        catching up with texts was to take `catch_up_s`.
        """
        before = _PURSE_TRY * alone_s if self._balance is None else self._balance
        spent_s = min(spent_s, _PURSE_OUTLIER * alone_s + 2 * catch_up_s)
        most_s = _PURSE_MOST * alone_s
        self._balance = _topped_up(before, worth_s - spent_s, most_s)
        if self._balance >= most_s:
            self._share = _MOST_SHARE
        elif self._balance < 0 and self.is_open:
            self.is_open, self._share = False, max(self._share / 2, _LEAST_SHARE)


def _topped_up(balance_s: float, gain_s: float, most_s: float) -> float:
    """What is there stays, also where steps have become shorter and `most_s` less: it was saved by longer ones."""
    return balance_s + min(gain_s, max(most_s - balance_s, 0.0))

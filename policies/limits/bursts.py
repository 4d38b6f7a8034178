"""How much of a rate a minute may come at once, which is what its bucket holds.

A bucket that holds what flows in during b seconds lets b seconds more than a minute through in its fullest minute, if
what calls take of it is what they use. Of requests it is. How many tokens a call uses is known when it is over, so
calls that are under way at the end of that minute may come to more than they took.
"""

from __future__ import annotations

_UNFORESEEN_OF_MINUTE = 0.02
_UNFORESEEN_OF_BURST = 0.2


def burst_of_requests(per_minute: int, burst_s: float) -> int:
    """All that flows in during so many seconds; always one."""
    return max(1, int(per_minute * burst_s / 60))


def burst_of_tokens(per_minute: int, burst_s: float) -> int:
    """The same, less what calls under way may use beyond what was expected of them: two hundredths of a minute's, and
    no more than a fifth.
    """
    unforeseen_s = min(60 * _UNFORESEEN_OF_MINUTE, burst_s * _UNFORESEEN_OF_BURST)
    return max(1, int(per_minute * (burst_s - unforeseen_s) / 60))

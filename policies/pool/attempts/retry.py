"""When another attempt may be made: the budget that bounds retries, the upstream's Retry-After, the backoff.

The loop that asks is `policies/pool/pool.py`.
"""

from __future__ import annotations

from random import Random

from backends.clock import Clock
from policies.pool.attempts.settings import BackoffPolicy

_SAVED_RETRIES = 100.0
_FLOOR_PER_S = 3.0
_FLOOR_SAVED = 10.0


class RetryBudget:
    """Bounds retries to a share of the calls, so that an outage does not multiply its own load.

    Two token buckets, each drained by every retry; either may pay. One earns `percent` / 100 a call and saves at most
    100 retries, the other earns 3 a second and saves at most 10, so that a quiet route can retry too. Hence
    retries <= share x calls + 3 x seconds + 10, and under load the share alone counts. 0 percent allows none.
    """

    __slots__ = ("_clock", "_floor", "_floor_at", "_share", "_share_per_call")

    def __init__(self, percent: float, clock: Clock) -> None:
        self._clock = clock
        self._share_per_call = percent / 100
        self._share = 0.0
        self._floor = _FLOOR_SAVED if percent > 0 else 0.0
        self._floor_at = clock.now()

    def add_call(self) -> None:
        """Earn one call's share."""
        share = self._share + self._share_per_call
        self._share = share if share < _SAVED_RETRIES else _SAVED_RETRIES

    def spend_nowait(self) -> bool:
        """Pay for one retry; False if there is nothing left."""
        if self._share_per_call == 0:
            return False
        now = self._clock.now()
        self._floor = min(_FLOOR_SAVED, self._floor + (now - self._floor_at) * _FLOOR_PER_S)
        self._floor_at = now
        if max(self._share, self._floor) < 1:
            return False
        self._share = max(0.0, self._share - 1)
        self._floor = max(0.0, self._floor - 1)
        return True


def backoff_s(policy: BackoffPolicy, number: int, random: Random) -> float:
    """Seconds to wait before retry `number` (from 0) of the same backend: doubling, jittered, at most `policy.max`."""
    # The exponent is capped because a float overflows; by then every wait is at its longest anyway.
    wait_s = min(policy.max, policy.initial * 2.0 ** min(number, 64))
    return min(policy.max, wait_s * (1 + policy.jitter * (2 * random.random() - 1)))

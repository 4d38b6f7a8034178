"""The circuit breaker of one backend: takes it out of rotation while it keeps failing, then tries it again gently.

    closed ── too many failures ──> open ── its time is over ──> half open ── it answers ──> closed, a growing share
                                      ^                              └────── it fails ─────> open, for longer

It only keeps count; the pool asks it, and tells it how attempts ended, and so does who probes the backend.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from weakref import WeakMethod

import msgspec

from backends.clock import Clock
from policies.pool.health.error_rate import ErrorRate
from policies.pool.settings import CircuitBreakerPolicy


class BreakerState(StrEnum):
    """Where a breaker stands; also the value shown in metrics."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


# An enum's members are slow to look up on the hot path.
_CLOSED, _OPEN, _HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

_PROBE_WAIT_S = 1.0
"""What to tell clients while a probe is on its way: its outcome decides, and that is not known yet."""

_LEAST_SHARE = 0.1
"""Where a slow start begins; with nothing it would never show that it works."""


class BreakerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker at one moment. `retry_in_s` is 0 where a call may be sent."""

    state: BreakerState
    consecutive_failures: int
    probes_in_flight: int
    opened: int
    retry_in_s: float


class CircuitBreaker:
    """Counts failures and decides whether a call may be sent.

    Each attempt takes a ticket with `begin` and hands it in once, with `succeed`, `fail` or `release`. A ticket from
    before the last change of state means nothing any more: late outcomes of an old time neither open nor close the
    breaker, and no permit of half open can be lost. `may_open` is asked before opening; while it says no, the breaker
    stays closed and asks again at the next failure. With `is_new` the backend starts slowly.
    """

    __slots__ = (
        "_clock",
        "_closed_at",
        "_errors",
        "_failures",
        "_generation",
        "_in_row",
        "_is_down",
        "_may_open",
        "_open_s",
        "_open_until",
        "_policy",
        "_probes",
        "_share",
        "_state",
        "is_settled",
        "num_opened",
    )

    def __init__(
        self,
        policy: CircuitBreakerPolicy,
        clock: Clock,
        may_open: Callable[[], bool] = lambda: True,
        *,
        is_new: bool = False,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._may_open = may_open
        self._state = _CLOSED
        self._generation = 0
        self._failures = 0
        self._errors = ErrorRate(policy.window)
        self._probes = 0
        self.num_opened = 0
        self._in_row = 0
        self._open_s = 0.0
        self._open_until = 0.0
        self._closed_at = clock.now()
        self._is_down = False
        self.is_settled = not (is_new and policy.slow_start)
        """Closed, and past its slow start: `takes_part` in one look, for those who decide most."""
        self._share = 0.0

    @property
    def is_closed(self) -> bool:
        """In rotation without restriction."""
        return self._state is _CLOSED

    def is_available(self) -> bool:
        """A call may be sent now."""
        return self._state is _CLOSED or self.retry_in_s() == 0

    def takes_part(self) -> bool:
        """Whether it is a candidate of this one decision: as `is_available`, but in a slow start only now and then.

        Where nobody else is, whoever is available will do.
        """
        return self.is_settled or (self._takes_turn() if self._state is _CLOSED else self.retry_in_s() == 0)

    def retry_in_s(self) -> float:
        """Seconds until a call may be sent; 0 if one may be sent now."""
        if self._state is _CLOSED:
            return 0.0
        if self._state is _OPEN:
            return max(0.0, self._open_until - self._clock.now())
        return 0.0 if self._probes < self._policy.half_open_max else _PROBE_WAIT_S

    def begin(self) -> int:
        """Take a ticket for one attempt. Only while `is_available()`, with no await in between."""
        if self._state is not _CLOSED:
            assert self.is_available(), "an attempt begins only where the breaker lets it"
            if self._state is _OPEN:
                self._enter(_HALF_OPEN)
            self._probes += 1
        return self._generation

    def answering(self, ticket: int) -> int:
        """A stream has begun: returns the ticket for its end.

        A probe has proved enough to close the breaker, for its stream may last minutes; but on probation: the count
        stays, so that the next failure opens it again unless a success comes first.
        """
        if self._state is _HALF_OPEN and ticket == self._generation:
            self._enter(_CLOSED)
            return self._generation
        return ticket

    def succeed(self, ticket: int) -> None:
        """The attempt showed that the backend works."""
        if ticket == self._generation:
            self._failures = 0
            if self._state is _HALF_OPEN:
                self._enter(_CLOSED)
            else:
                self._errors.add(self._clock.now(), has_failed=False)

    def fail(self, ticket: int) -> None:
        """The attempt failed, and the backend is to blame."""
        if ticket != self._generation:
            return
        self._failures += 1
        now = self._clock.now()
        self._errors.add(now, has_failed=True)
        if self._state is _HALF_OPEN or (self._is_failing(now) and self._may_open()):
            self._open(now)

    def release(self, ticket: int) -> None:
        """The attempt says nothing about the backend: cancelled, or turned away because it is full."""
        if ticket == self._generation and self._state is _HALF_OPEN:
            self._probes -= 1

    def mark_down(self, for_s: float) -> None:
        """Whoever probes the backend found it not working, and will say more within `for_s`."""
        until = self._clock.now() + for_s
        if self._state is _CLOSED and not self._may_open():
            return
        self._is_down = True
        if self._state is not _OPEN:
            self._open(self._clock.now())
        self._open_until = max(self._open_until, until)

    def mark_up(self) -> None:
        """Whoever probes the backend found it working again.

        That ends only what a probe has seen: where probes went well all the time, they cannot see what is wrong.
        """
        if self._is_down and self._state is not _CLOSED:
            self._enter(_CLOSED)
        self._is_down = False

    def snapshot(self) -> BreakerSnapshot:
        """How it stands now. An open breaker whose time is over shows as half open."""
        retry_in_s = self.retry_in_s()
        return BreakerSnapshot(
            state=_HALF_OPEN if self._state is _OPEN and retry_in_s == 0 else self._state,
            consecutive_failures=self._failures,
            probes_in_flight=self._probes,
            opened=self.num_opened,
            retry_in_s=retry_in_s,
        )

    def _is_failing(self, now: float) -> bool:
        policy = self._policy
        return self._failures >= policy.consecutive_failures or self._errors.is_above(
            policy.error_rate, policy.min_calls, now
        )

    def _open(self, now: float) -> None:
        """Rest for longer each time, unless it has worked since as long as it had rested."""
        policy = self._policy
        if self._state is _CLOSED and now - self._closed_at >= self._open_s:
            self._in_row = 0
        self._in_row += 1
        self.num_opened += 1
        self._open_s = min(policy.open_for * self._in_row, max(policy.open_for, policy.max_open_for))
        self._open_until = now + self._open_s
        self._enter(_OPEN)

    def _enter(self, state: BreakerState) -> None:
        self._state = state
        self._generation += 1
        self._probes = 0
        self._errors.clear()
        self.is_settled = state is _CLOSED and not self._policy.slow_start
        self._share = 0.0
        self._closed_at = self._clock.now()

    def _takes_turn(self) -> bool:
        """In a slow start: whether the share that it has earned by now has come to a whole decision."""
        grown = (self._clock.now() - self._closed_at) / self._policy.slow_start
        self.is_settled = grown >= 1
        self._share += max(grown, _LEAST_SHARE)
        if self._share < 1:
            return False
        self._share -= 1
        return True


def weakly(may_open: Callable[[], bool]) -> Callable[[], bool]:
    """A method to ask that is known weakly: a cycle of breakers and their pool would outlive its policy."""
    method = WeakMethod(may_open)

    def ask() -> bool:
        found = method()
        return found is None or found()

    return ask

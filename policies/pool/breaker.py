"""The circuit breaker of one backend: takes it out of rotation while it keeps failing, then tries it again gently.

    closed ── failures in a row ──> open ── open_for is over ──> half open ── it answers ──> closed
                                      ^                              └────── it fails ─────> open

It only keeps count; the pool asks it, and tells it how attempts ended.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from backends.clock import Clock
from policies.schema import CircuitBreakerPolicy


class BreakerState(StrEnum):
    """Where a breaker stands; also the value shown in metrics."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


# An enum's members are slow to look up on the hot path.
_CLOSED, _OPEN, _HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

_PROBE_WAIT_S = 1.0
"""What to tell clients while a probe is on its way: its outcome decides, and that is not known yet."""


class BreakerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker at one moment. `retry_in_s` is 0 where a call may be sent."""

    state: BreakerState
    consecutive_failures: int
    probes_in_flight: int
    opened: int
    retry_in_s: float


class CircuitBreaker:
    """Counts failures in a row and decides whether a call may be sent.

    Each attempt takes a ticket with `begin` and hands it in once, with `succeed`, `fail` or `release`. A ticket from
    before the last change of state means nothing any more: late outcomes of an old time neither open nor close the
    breaker, and no permit of half open can be lost. `may_open` is asked before opening; while it says no, the breaker
    stays closed and asks again at the next failure.
    """

    __slots__ = (
        "_clock",
        "_failures",
        "_generation",
        "_may_open",
        "_open_until",
        "_opened",
        "_policy",
        "_probes",
        "_state",
    )

    def __init__(self, policy: CircuitBreakerPolicy, clock: Clock, may_open: Callable[[], bool] = lambda: True) -> None:
        self._policy = policy
        self._clock = clock
        self._may_open = may_open
        self._state = _CLOSED
        self._generation = 0
        self._failures = 0
        self._probes = 0
        self._opened = 0
        self._open_until = 0.0

    @property
    def is_closed(self) -> bool:
        """In rotation without restriction."""
        return self._state is _CLOSED

    def is_available(self) -> bool:
        """A call may be sent now."""
        return self._state is _CLOSED or self.retry_in_s() == 0

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

    def fail(self, ticket: int) -> None:
        """The attempt failed, and the backend is to blame."""
        if ticket != self._generation:
            return
        self._failures += 1
        if self._state is _HALF_OPEN or (self._failures >= self._policy.consecutive_failures and self._may_open()):
            self._opened += 1
            self._open_until = self._clock.now() + self._policy.open_for
            self._enter(_OPEN)

    def release(self, ticket: int) -> None:
        """The attempt says nothing about the backend: cancelled, or turned away because it is full."""
        if ticket == self._generation and self._state is _HALF_OPEN:
            self._probes -= 1

    def snapshot(self) -> BreakerSnapshot:
        """How it stands now. An open breaker whose time is over shows as half open."""
        retry_in_s = self.retry_in_s()
        return BreakerSnapshot(
            state=_HALF_OPEN if self._state is _OPEN and retry_in_s == 0 else self._state,
            consecutive_failures=self._failures,
            probes_in_flight=self._probes,
            opened=self._opened,
            retry_in_s=retry_in_s,
        )

    def _enter(self, state: BreakerState) -> None:
        self._state = state
        self._generation += 1
        self._probes = 0

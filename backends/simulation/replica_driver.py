"""Moves a simulated replica through a clock's time, and lets calls wait for their tokens within their limits."""

from __future__ import annotations

import asyncio
import heapq
import math

from backends.clock import Clock
from backends.errors import FirstTokenTimeout, TotalTimeout, UpstreamCut, UpstreamError
from backends.protocol import Call
from backends.simulation.simulated_replica import ReplicaRequest, SimulatedReplica

_TOLERANCE_S = 1e-9
"""How much too early a clock may wake: a sum of floating-point seconds is not exact."""


class QueuedCall:
    """One call at the replica, from when it gets in line."""

    __slots__ = ("_driver", "deadline", "error", "is_late_first", "limit_at", "waiter", "wanted", "work")

    def __init__(self, driver: ReplicaDriver, call: Call, work: ReplicaRequest) -> None:
        self._driver = driver
        self.work = work
        self.wanted = 0
        self.waiter: asyncio.Future[None] | None = None
        self.error: UpstreamError | None = None
        self.deadline = call.deadline
        first_limit_at = driver.now() + call.timeouts.first_token_s if call.stream else math.inf
        self.is_late_first = first_limit_at < call.deadline
        """What ends it at `limit_at` is that it has no first token, and not its deadline."""
        self.limit_at = min(first_limit_at, call.deadline)
        driver.submit(self)

    async def wait_for(self, num_tokens: int) -> int:
        """Until so many tokens are there; returns how many are.

        Raises: FirstTokenTimeout, TotalTimeout, or UpstreamCut where the backend is closed.
        """
        if self._driver.num_output(self.work) < num_tokens:
            if self.error is not None:
                raise self.error
            self.wanted = num_tokens
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        return self._driver.num_output(self.work)

    def fail(self, error: UpstreamError) -> None:
        """No more tokens will come."""
        self.error = error
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)

    def leave(self) -> None:
        """No more is wanted; what is not computed yet never is. Safe to call twice."""
        self._driver.leave(self)


class ReplicaDriver:
    """Wakes at the end of the replica's step, hands out what came of it, and ends what is late.

    `sees_every_step` tells waiting calls of every step and not only of first and last tokens. One timer runs while
    there is something to wait for.
    """

    def __init__(self, replica: SimulatedReplica, clock: Clock, *, sees_every_step: bool) -> None:
        self._replica = replica
        self._clock = clock
        self._sees_every_step = sees_every_step
        self._flights: dict[ReplicaRequest, QueuedCall] = {}
        self._limits: list[tuple[float, int, QueuedCall]] = []
        self._num_limits = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        self.is_closed = False

    @property
    def in_flight(self) -> int:
        """Calls whose last token is not there yet."""
        return len(self._flights)

    def now(self) -> float:
        """The clock's seconds."""
        return self._clock.now()

    def num_output(self, work: ReplicaRequest) -> int:
        """Tokens that have come out of it."""
        return self._replica.num_output(work)

    def submit(self, flight: QueuedCall) -> None:
        """Take up a call."""
        self._flights[flight.work] = flight
        self._settle()
        self._replica.submit(flight.work, self._clock.now())
        self._note_limit(flight)
        self._plan()

    def leave(self, flight: QueuedCall) -> None:
        """The call is over. Nothing where it was already."""
        if self._flights.pop(flight.work, None) is not None:
            self._settle()
            self._replica.cancel(flight.work, self._clock.now())
            self._plan()

    async def aclose(self) -> None:
        """End every call with UpstreamCut. Safe to call twice."""
        self.is_closed = True
        for flight in self._flights.values():
            flight.fail(UpstreamCut("the backend was closed"))
        self._flights.clear()
        self._stop_timer()

    def _settle(self) -> None:
        """Complete what is over by now, and tell who waits for it."""
        now = self._clock.now() + _TOLERANCE_S
        changed = self._replica.advance(now)
        for work in list(self._flights) if self._sees_every_step else changed:
            flight = self._flights.get(work)
            if flight is not None:
                self._tell(flight)
        limits = self._limits
        while limits:
            limit_at, _, flight = limits[0]
            is_live = flight.limit_at == limit_at and flight.work in self._flights
            if is_live and limit_at > now:
                break
            heapq.heappop(limits)
            if is_live:
                self._give_up(flight)

    def _tell(self, flight: QueuedCall) -> None:
        work = flight.work
        if work.finished_at is not None:
            del self._flights[work]
        elif flight.is_late_first and work.first_token_at is not None:
            flight.is_late_first = False
            flight.limit_at = flight.deadline
            self._note_limit(flight)
        waiter = flight.waiter
        if waiter is not None and not waiter.done() and self._replica.num_output(work) >= flight.wanted:
            waiter.set_result(None)

    def _note_limit(self, flight: QueuedCall) -> None:
        self._num_limits += 1
        heapq.heappush(self._limits, (flight.limit_at, self._num_limits, flight))

    def _give_up(self, flight: QueuedCall) -> None:
        if flight.is_late_first:
            flight.fail(FirstTokenTimeout("the first token did not come in time"))
        else:
            flight.fail(TotalTimeout("the answer did not come in time"))
        del self._flights[flight.work]
        self._replica.cancel(flight.work, self._clock.now())

    def _plan(self) -> None:
        """Have the timer wake when something happens. That it wakes too early does no harm."""
        next_at = min(self._replica.step_ends_at, self._limits[0][0] if self._limits else math.inf)
        if self._timer is not None:
            if next_at >= self._wakes_at:
                return
            self._stop_timer()
        if not self.is_closed and next_at < math.inf:
            self._wakes_at = next_at
            self._timer = asyncio.get_running_loop().call_later(next_at - self._clock.now(), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._settle()
        self._plan()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

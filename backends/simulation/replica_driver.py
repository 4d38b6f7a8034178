"""Advances a simulated replica with a clock, and lets calls wait for their tokens within their time limits."""

from __future__ import annotations

import asyncio
import heapq
import math

from backends.clock import Clock
from backends.errors import FirstTokenTimeout, TotalTimeout, UpstreamCut, UpstreamError
from backends.protocol import Call
from backends.simulation.simulated_replica import ReplicaRequest, SimulatedReplica

_TOLERANCE_S = 1e-9
"""So much too early a timer may fire, because sums of floating-point seconds are not exact."""


class SimulatedCall:
    """One call at the replica, from its submission to its end."""

    __slots__ = ("_driver", "deadline", "error", "is_late_first", "limit_at", "request", "waiter", "wanted")

    def __init__(self, driver: ReplicaDriver, call: Call, request: ReplicaRequest) -> None:
        self._driver = driver
        self.request = request
        self.wanted = 0
        self.waiter: asyncio.Future[None] | None = None
        self.error: UpstreamError | None = None
        self.deadline = call.deadline
        first_limit_at = driver.now() + call.timeouts.first_token_s if call.stream else math.inf
        self.is_late_first = first_limit_at < call.deadline
        """Whether `limit_at` is the limit of its first token rather than its deadline."""
        self.limit_at = min(first_limit_at, call.deadline)
        driver.submit(self)

    async def wait_for(self, num_tokens: int) -> int:
        """Wait until so many tokens are computed; returns how many there are.

        Raises: FirstTokenTimeout, TotalTimeout, or UpstreamCut where the backend is closed.
        """
        if self._driver.num_output(self.request) < num_tokens:
            if self.error is not None:
                raise self.error
            self.wanted = num_tokens
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        return self._driver.num_output(self.request)

    def fail(self, error: UpstreamError) -> None:
        """Raise an error in whoever waits for tokens, now or later."""
        self.error = error
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)

    def end(self) -> None:
        """End the call: tokens that are not computed yet never will be. Safe to call twice."""
        self._driver.end(self)


class ReplicaDriver:
    """Wakes at the end of each step of the replica, resumes the calls that have new tokens, and fails late ones.

    With `sees_every_step` calls are resumed after every step, otherwise only at their first and last token. One timer
    runs while any call is in flight.
    """

    def __init__(self, replica: SimulatedReplica, clock: Clock, *, sees_every_step: bool) -> None:
        self._replica = replica
        self._clock = clock
        self._sees_every_step = sees_every_step
        self._calls: dict[ReplicaRequest, SimulatedCall] = {}
        self._limits: list[tuple[float, int, SimulatedCall]] = []
        self._num_limits = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        self.is_closed = False

    @property
    def in_flight(self) -> int:
        """Calls whose last token is not computed yet."""
        return len(self._calls)

    def now(self) -> float:
        """The clock's seconds."""
        return self._clock.now()

    def num_output(self, request: ReplicaRequest) -> int:
        """The tokens of a request that are computed."""
        return self._replica.num_output(request)

    def submit(self, call: SimulatedCall) -> None:
        """Submit a call to the replica."""
        self._calls[call.request] = call
        self._advance()
        self._replica.submit(call.request, self._clock.now())
        self._note_limit(call)
        self._set_timer()

    def end(self, call: SimulatedCall) -> None:
        """End a call, if it is still in flight."""
        if self._calls.pop(call.request, None) is not None:
            self._advance()
            self._replica.cancel(call.request, self._clock.now())
            self._set_timer()

    async def aclose(self) -> None:
        """End every call with UpstreamCut. Safe to call twice."""
        self.is_closed = True
        for call in self._calls.values():
            call.fail(UpstreamCut("the backend was closed"))
        self._calls.clear()
        self._stop_timer()

    def _advance(self) -> None:
        """Complete the steps that are over by now, resume the calls with new tokens, and fail late ones."""
        now = self._clock.now() + _TOLERANCE_S
        changed = self._replica.advance(now)
        for request in list(self._calls) if self._sees_every_step else changed:
            call = self._calls.get(request)
            if call is not None:
                self._resume(call)
        limits = self._limits
        while limits:
            limit_at, _, call = limits[0]
            is_live = call.limit_at == limit_at and call.request in self._calls
            if is_live and limit_at > now:
                break
            heapq.heappop(limits)
            if is_live:
                self._time_out(call)

    def _resume(self, call: SimulatedCall) -> None:
        request = call.request
        if request.finished_at is not None:
            del self._calls[request]
        elif call.is_late_first and request.first_token_at is not None:
            call.is_late_first = False
            call.limit_at = call.deadline
            self._note_limit(call)
        waiter = call.waiter
        if waiter is not None and not waiter.done() and self._replica.num_output(request) >= call.wanted:
            waiter.set_result(None)

    def _note_limit(self, call: SimulatedCall) -> None:
        self._num_limits += 1
        heapq.heappush(self._limits, (call.limit_at, self._num_limits, call))

    def _time_out(self, call: SimulatedCall) -> None:
        if call.is_late_first:
            call.fail(FirstTokenTimeout("the first token did not come in time"))
        else:
            call.fail(TotalTimeout("the answer did not come in time"))
        del self._calls[call.request]
        self._replica.cancel(call.request, self._clock.now())

    def _set_timer(self) -> None:
        """Set the timer for the next event. It does no harm if the timer fires too early."""
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
        self._advance()
        self._set_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

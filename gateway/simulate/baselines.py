"""What the policies are measured against: replicas behind Netflix's Gradient2 limit, which refuse what is over it.

Written from the published formulas (Netflix concurrency-limits, Gradient2Limit), with their defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint

from backends.clock import Clock
from backends.errors import Overloaded, SlipstreamError
from backends.protocol import Backend, Call, Reply
from backends.registry import GROUP, Kind, Registry
from backends.simulation.simulated import Simulated, SimulatedConfig
from backends.stream import StreamEnd
from policies.stage import Stage

_INITIAL, _MIN, _MAX = 20.0, 20.0, 200.0
_TOLERANCE = 1.5
_SMOOTHING = 0.2
_QUEUE = 4
_LONG_WINDOW = 600
_WARM_UP = 10
"""Samples whose plain mean the long average begins with."""
_FORGETS_AT = 2.0
"""A long average this many times the newest sample is of a load that is over, and comes down faster."""


class Gradient2:
    """How many calls may be in flight: fewer once they take longer than they used to. Pure."""

    def __init__(self) -> None:
        self.limit = _INITIAL
        self._long_s = 0.0
        self._num_samples = 0

    def sample(self, seconds: float, in_flight: int) -> None:
        """A call took so long, while so many were in flight with it."""
        self._num_samples += 1
        fresh = 1 / self._num_samples if self._num_samples <= _WARM_UP else 2 / (_LONG_WINDOW + 1)
        self._long_s += fresh * (seconds - self._long_s)
        if self._long_s > _FORGETS_AT * seconds:
            self._long_s *= 0.95
        # Who does not use its limit learns nothing about it.
        if in_flight < self.limit / 2:
            return
        gradient = max(0.5, min(1.0, _TOLERANCE * self._long_s / seconds))
        wanted = self.limit * gradient + _QUEUE
        self.limit = max(_MIN, min(_MAX, self.limit + _SMOOTHING * (wanted - self.limit)))


class Limited(Stage):
    """A backend that refuses, with 429, what its limit has no place for."""

    def __init__(self, inner: Backend, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self._gradient = Gradient2()
        self._in_flight = 0

    async def send(self, call: Call) -> Reply:
        """Pass the call on if there is a place for it.

        Raises: Overloaded if not; else what the backend raises.
        """
        if self._in_flight >= int(self._gradient.limit):
            raise Overloaded(f"backend {self.name} has {self._in_flight} calls in flight, which is its limit")
        self._in_flight += 1
        ended = self._ender(self._clock.now(), self._in_flight)
        try:
            reply = await self._inner.send(call)
        except SlipstreamError:
            ended(StreamEnd.ERROR)
            raise
        if reply.stream is not None:
            reply.stream.on_end.append(ended)
        else:
            ended(StreamEnd.CLEAN)
        return reply

    def _ender(self, began_at: float, in_flight: int) -> Callable[[StreamEnd], None]:
        def ended(how: StreamEnd) -> None:
            self._in_flight -= 1
            if how is StreamEnd.CLEAN:
                self._gradient.sample(self._clock.now() - began_at, in_flight)

        return ended


def limited_registry() -> Registry:
    """Backends of `type: simulated` are then replicas behind a limit."""
    return Registry({"simulated": EntryPoint("simulated", f"{__name__}:LIMITED", GROUP)})


LIMITED = Kind(config=SimulatedConfig, build=lambda name, config, clock: Limited(Simulated(name, config, clock), clock))

"""Probes: when they are made, what they open and close, and that they end."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

from backends.errors import ConnectFailed, PoolTimeout, UpstreamError
from backends.health import HealthConfig
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.health.prober import ProbedBackend, Prober
from policies.pool.settings import CircuitBreakerPolicy
from tests.support.clock import FakeClock

HEALTH = HealthConfig.model_validate({"interval": "5s", "timeout": "1s", "failures": 2})


class Asked:
    """A backend that is as it says, and remembers when it was asked."""

    def __init__(self, clock: FakeClock) -> None:
        self.name = "up"
        self.health: HealthConfig | None = HEALTH
        self.error: UpstreamError | None = None
        self.asked_at: list[float] = []
        self._clock = clock

    async def check_health(self) -> None:
        """Say how it is."""
        self.asked_at.append(self._clock.now())
        if self.error is not None:
            raise self.error


def _prober(clock: FakeClock) -> tuple[Asked, list[CircuitBreaker], Prober]:
    backend = Asked(clock)
    breakers = [CircuitBreaker(CircuitBreakerPolicy(), clock) for _ in range(2)]
    return backend, breakers, Prober({"up": ProbedBackend(backend, HEALTH, breakers)}, clock, Random(1))


async def test_prober_goes_on_after_an_error_that_no_check_should_raise(clock: FakeClock) -> None:
    """A bug in a backend's own check is counted, says nothing about the backend, and ends no watch."""
    backend, breakers, prober = _prober(clock)
    backend.error = ValueError("not what a check raises")
    await prober.open()
    await clock.advance(10.0)
    failed = [loop.failures.take() for loop in prober.loops]
    states = [breaker.snapshot().state.value for breaker in breakers]
    backend.error = None
    asked = len(backend.asked_at)
    await clock.advance(20.0)
    await prober.aclose()

    assert failed == [asked]
    assert asked >= 2
    assert states == ["closed", "closed"]
    assert len(backend.asked_at) > asked


async def test_prober_asks_in_jittered_intervals_until_it_is_closed(clock: FakeClock) -> None:
    """At once, then every five seconds more or less, never twice the same; after its end no more, and no task stays."""
    backend, _, prober = _prober(clock)
    before = asyncio.all_tasks()
    await prober.open()
    await clock.advance(100.0)
    await prober.aclose()
    await prober.aclose()
    asked = len(backend.asked_at)
    await clock.advance(100.0)
    waits = [later - earlier for earlier, later in pairwise(backend.asked_at)]

    assert backend.asked_at[0] == 1000.0
    assert 16 <= asked <= 25
    assert all(4.0 <= wait <= 6.0 for wait in waits)
    assert len(set(waits)) > 10
    assert len(backend.asked_at) == asked
    assert asyncio.all_tasks() == before


async def test_prober_opens_after_failures_in_a_row_and_closes_with_the_first_good_one(clock: FakeClock) -> None:
    """One bad answer is bad luck; two take it out of every route, as long as it lasts, and one good one ends it."""
    backend, breakers, prober = _prober(clock)
    await prober.open()
    await clock.advance(1.0)
    backend.error = ConnectFailed("refused")
    shown = []
    for number in (2, 3, 20):
        while len(backend.asked_at) < number:
            await clock.advance(0.5)
        shown.append([breaker.is_available() for breaker in breakers])
    backend.error = None
    while len(backend.asked_at) < 21:
        await clock.advance(0.5)
    await prober.aclose()

    assert shown == [[True, True], [False, False], [False, False]]
    assert [breaker.is_closed for breaker in breakers] == [True, True]
    assert prober.patients["up"].take_failures() == 19
    assert prober.patients["up"].take_failures() == 0


async def test_prober_takes_out_what_is_down_at_the_start(clock: FakeClock) -> None:
    """Nobody has seen it working, so one bad answer is enough."""
    backend, breakers, prober = _prober(clock)
    backend.error = ConnectFailed("refused")
    await prober.open()
    await clock.advance(0.5)
    await prober.aclose()

    assert not breakers[0].is_available()
    assert not prober.patients["up"].is_up


async def test_prober_judges_nothing_where_all_connections_are_in_use(clock: FakeClock) -> None:
    """A busy backend is not a broken one, however often it has no room for the question."""
    backend, breakers, prober = _prober(clock)
    backend.error = PoolTimeout("none came free")
    await prober.open()
    await clock.advance(60.0)
    await prober.aclose()

    assert len(backend.asked_at) > 8
    assert breakers[0].is_closed
    assert prober.patients["up"].take_failures() == 0

"""A pool under load and in trouble: dying backends, retry storms, cancellation at every await."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import types
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from backends.errors import ConnectFailed, SlipstreamError, UpstreamCut
from backends.protocol import Call, Reply, Timeouts
from backends.stream import Stream
from policies.pool.fallback import Fallback, FallbackTarget
from policies.pool.pool import Pool
from tests.support.calls import make_call
from tests.support.clock import FakeClock
from tests.support.policy.pool import Outcome, Played, StoppedClock, error_reply, make_pool

DEADLINE = 1e9


class Server:
    """A backend's server: works for 100 ms on each call until it is killed; then nothing listens."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.is_dead = False
        self.died_in_flight = 0
        self.asked = 0

    async def answer(self, call: Call) -> Reply:
        """One call."""
        self.asked += 1
        if self.is_dead:
            raise ConnectFailed("refused")
        await self._clock.sleep(0.1)
        if self.is_dead:
            self.died_in_flight += 1
            raise UpstreamCut("killed")
        return Reply(200, [], body=b"ok")


async def _load(pool: Pool, clock: FakeClock, calls: int, per_s: float) -> list[tuple[float, str]]:
    """Send calls at a steady rate; the time each was sent and how it ended."""
    ends: list[tuple[float, str]] = []

    async def one() -> None:
        sent_at = clock.now()
        try:
            reply = await pool.send(make_call(deadline=clock.now() + 60))
            ends.append((sent_at, str(reply.status)))
        except SlipstreamError as error:
            ends.append((sent_at, type(error).__name__))

    async with asyncio.TaskGroup() as group:
        for _ in range(calls):
            group.create_task(one())
            await clock.advance(1 / per_s)
        while len(ends) < calls:
            await clock.advance(0.1)
    return ends


async def test_pool_backend_killed_under_load_fails_nothing(clock: FakeClock) -> None:
    """Calls that the dead backend was working on go on to the other; every later one is answered, with few extra
    attempts."""
    servers = [Server(clock), Server(clock)]
    pool = make_pool([Played("a", servers[0].answer), Played("b", servers[1].answer)], clock)

    async def kill() -> None:
        await clock.sleep(2.0)
        servers[0].is_dead = True

    killer = asyncio.ensure_future(kill())
    ends = await _load(pool, clock, calls=600, per_s=100)
    await killer
    failed = [end for _, end in ends if end != "200"]

    assert servers[0].died_in_flight > 0
    assert failed == []
    assert pool.retry_statistics().retries <= 5 + servers[0].died_in_flight
    assert pool.breaker_states() == {"a": "open", "b": "closed"}


async def test_pool_flapping_backend_is_used_again_when_it_is_back(clock: FakeClock) -> None:
    """The half-open probe brings it back into rotation, and no call fails meanwhile."""
    servers = [Server(clock), Server(clock)]
    servers[0].is_dead = True
    pool = make_pool(
        [Played("a", servers[0].answer), Played("b", servers[1].answer)],
        clock,
        breaker={"open_for": "1s", "slow_start": "0s"},
    )
    first = await _load(pool, clock, calls=100, per_s=100)
    servers[0].is_dead = False
    asked_when_dead = servers[0].asked
    second = await _load(pool, clock, calls=200, per_s=100)

    assert {end for _, end in first + second} == {"200"}
    assert asked_when_dead <= 6
    assert servers[0].asked - asked_when_dead >= 40


@pytest.mark.parametrize("outcome", [503, ConnectFailed("refused"), error_reply(429, retry_after="0")])
async def test_pool_total_outage_makes_no_retry_storm(clock: FakeClock, outcome: Outcome) -> None:
    """With everything down, extra attempts stay within 20 % of the calls and the small reserve."""
    backends = [Played("a", outcome), Played("b", outcome)]
    pool = make_pool(backends, clock, retry={"attempts": 5, "backoff": {"initial": "1ms", "max": "10ms"}})
    ends = await _load(pool, clock, calls=1000, per_s=200)
    attempts = sum(len(backend.calls) for backend in backends)

    assert attempts - 1000 == pool.retry_statistics().retries <= 200 + 10
    assert pool.retry_statistics().retries_over_budget > 700
    assert "200" not in {end for _, end in ends}


async def test_pool_failed_call_leaves_no_reference_cycle(clock: FakeClock) -> None:
    """An error's traceback must not keep its own frames alive: an outage would be garbage collection's load too."""

    async def refuse(_: Call) -> Reply:
        raise ConnectFailed("refused")

    pool = make_pool([Played("a", refuse)], clock, retry={"attempts": 0})
    fallback = Fallback(pool, [], ["error"], clock)

    gc.collect()
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        for _ in range(3):
            with contextlib.suppress(ConnectFailed):
                await fallback.send(make_call(deadline=DEADLINE))
        gc.collect()
        leaked = [each for each in gc.garbage if isinstance(each, ConnectFailed)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()

    assert leaked == []


@types.coroutine
def _suspend() -> Generator[None, None, None]:
    yield


class _Steps(StoppedClock):
    """A clock whose every sleep is one suspension, after which the time has passed."""

    async def sleep(self, seconds: float) -> None:
        """Suspend once."""
        await _suspend()
        self.seconds += seconds


class _SlowSource:
    """A stream's source whose close is one suspension; knows whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def read(self) -> bytes:
        """The end."""
        return b""

    async def aclose(self) -> None:
        """Close, then suspend."""
        self.is_closed = True
        await _suspend()


class _Scenario:
    """A call that meets every await there is: probes, waits, closings and a fallback, and is answered in the end."""

    def __init__(self) -> None:
        self.clock = _Steps()
        self.sources: list[_SlowSource] = []
        down = ConnectFailed("refused")
        self.backends = [
            Played("a", down, down, self._busy),
            Played("b", down, down, self._busy),
            Played("c", self._busy),
            Played("d", down, down, self._good),
        ]
        breaker = {"consecutive_failures": 2, "open_for": "30s", "max_open_for": "30s", "max_ejection_percent": 100}
        self.pools = [
            make_pool(self.backends[:2], self.clock, breaker=breaker),
            make_pool(self.backends[2:3], self.clock, breaker={**breaker, "consecutive_failures": 9}),
            make_pool(self.backends[3:], self.clock, breaker=breaker),
        ]
        for pool in (self.pools[0], self.pools[2]):
            while "closed" in pool.breaker_states().values():
                with pytest.raises(ConnectFailed):
                    _drive(pool.send(make_call(deadline=DEADLINE)), 1000)
        self.clock.seconds += 30

    async def _busy(self, _: Call) -> Reply:
        return await self._reply(503)

    async def _good(self, _: Call) -> Reply:
        return await self._reply(200)

    async def _reply(self, status: int) -> Reply:
        await _suspend()
        self.sources.append(_SlowSource())
        return Reply(status, [], stream=Stream(self.sources[-1]))

    def run(self, suspensions: int) -> Reply | None:
        """The call, cancelled after so many suspensions."""
        targets = [FallbackTarget(f"other-{number}", pool, Timeouts()) for number, pool in enumerate(self.pools[1:])]
        fallback = Fallback(self.pools[0], targets, ["error"], self.clock)
        return _drive(fallback.send(make_call(deadline=DEADLINE)), suspensions)


def _drive(work: Coroutine[Any, Any, Reply], suspensions: int) -> Reply | None:
    """Run without a loop, cancelled after so many suspensions (None), unless it is done before."""
    try:
        for _ in range(suspensions):
            work.send(None)
    except StopIteration as done:
        reply: Reply = done.value
        return reply
    try:
        work.throw(asyncio.CancelledError())
        while True:
            work.send(None)
    except asyncio.CancelledError:
        return None


_AWAITS = 13


def test_pool_and_fallback_scenario_is_answered_after_every_await() -> None:
    """Left alone the scenario comes to its end in exactly the suspensions that the next test cancels at."""
    scenario = _Scenario()
    reply = scenario.run(_AWAITS + 1)

    assert reply is not None
    assert reply.status == 200
    assert [source.is_closed for source in scenario.sources] == [True] * 5 + [False]
    assert _Scenario().run(_AWAITS) is None


@pytest.mark.parametrize("suspensions", range(1, _AWAITS + 1))
def test_pool_and_fallback_cancelled_at_any_await_leak_nothing(suspensions: int) -> None:
    """Whenever the client leaves, each failed reply is closed and each half-open permit is back."""
    scenario = _Scenario()
    reply = scenario.run(suspensions)
    scenario.clock.seconds += 31
    asked_before = [len(backend.calls) for backend in scenario.backends]
    for backend in scenario.backends:
        backend.outcomes = [200]
    for pool in scenario.pools:
        for _ in range(6):
            _drive(pool.send(make_call(deadline=DEADLINE)), 1)

    assert reply is None
    assert all(source.is_closed for source in scenario.sources)
    assert all(len(backend.calls) > before for backend, before in zip(scenario.backends, asked_before, strict=True))

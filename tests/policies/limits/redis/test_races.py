"""Four processes race for one budget and one limit: together they get what there is, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from tests.support.policy.limits import counting
from tests.support.policy.limits_race import WORST, Race, Result, admitted, start
from tests.support.servers.redis_server import RedisServer

NUM_PROCESSES = 4


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    """A running Redis."""
    async with RedisServer() as server:
        yield server


async def run(race: Race) -> list[Result]:
    """What each of them got."""
    results = await asyncio.gather(*[process.result() for process in await start(race, NUM_PROCESSES)])
    return [result for result in results if result is not None]


async def test_processes_race_for_a_budget_it_is_used_to_its_end_and_overspent_by_less_than_a_call(
    server: RedisServer,
) -> None:
    """Of 30 calls of the largest kind; what Redis counts is what they have spent."""
    race = Race(url=server.url, kind="budget", most=30 * WORST)
    results = await run(race)
    spent = sum(cost for result in results for _, cost in result.calls)

    assert 30 * WORST <= spent <= 31 * WORST
    assert len(results) == NUM_PROCESSES
    async with counting(server.url) as counters:
        assert await counters.spent(["race"]) == [(spent, 0)]


@pytest.mark.alone
async def test_process_is_killed_in_the_race_its_calls_are_spent_and_nothing_is_held(server: RedisServer) -> None:
    """The others use the budget to its end."""
    race = Race(url=server.url, kind="budget", most=1500 * WORST, lease_s=1.5)
    processes = await start(race, NUM_PROCESSES)
    # In the midst of it, as the whole budget takes longer.
    await asyncio.sleep(0.3)
    processes[0].kill()
    results = [result for process in processes if (result := await process.result()) is not None]
    known = sum(cost for result in results for _, cost in result.calls)

    assert len(results) == 3
    async with counting(server.url, lease_s=0.6) as counters, Redis.from_url(server.url) as redis:
        spent = await counters.spent(["race"])
        async with asyncio.timeout(5.0):
            while len(await redis.keys("*:holds:*")):
                await asyncio.sleep(0.05)
        assert spent == [(spent[0][0], 0)]
        assert 1500 * WORST <= spent[0][0] <= 1501 * WORST
        assert spent[0][0] > known


@pytest.mark.alone
@pytest.mark.timed
async def test_processes_race_for_a_limit_they_get_burst_and_rate(server: RedisServer) -> None:
    """Of 600 requests a minute, for three minutes that go by in six seconds."""
    race = Race(
        url=server.url,
        kind="requests",
        per_minute=600,
        minutes=3.0,
        scale=30.0,
    )
    got = admitted(race, await run(race))

    assert 0.97 <= got.whole <= 1.01
    # The moments are those of the processes, which may run a few milliseconds late: a tenth of a second of the limit's.
    assert got.worst_minute <= 1.12


@pytest.mark.alone
@pytest.mark.timed
async def test_processes_race_for_tokens_what_was_expected_wrongly_evens_out(server: RedisServer) -> None:
    """Calls use between a fifth and nearly twice of what they asked for."""
    race = Race(
        url=server.url,
        kind="tokens",
        per_minute=100_000,
        minutes=3.0,
        scale=30.0,
        callers=12,
    )
    got = admitted(race, await run(race))

    assert 0.97 <= got.whole <= 1.03
    assert got.worst_minute <= 1.2

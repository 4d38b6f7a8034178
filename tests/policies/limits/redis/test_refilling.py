"""A Redis that has lost what was spent is told again by whoever knows, before anything is counted there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import pytest
from redis.asyncio import Redis

from backends.errors import StoreUnavailable
from policies.limits.counters import Full, Hold, SpentBefore
from tests.support.policy.limits import counting, dollars, hold, pico, slot, told, until
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.slow_proxy import SlowProxy

BUDGET = ["budget"]


class Books:
    """What somebody else knows of budgets; `is_away`: does not say. `num_read`: how often it was asked."""

    def __init__(self, **spent: int) -> None:
        self.spent = spent
        self.is_away = False
        self.num_read = 0
        self.delay_s = 0.0

    async def read(self) -> Sequence[SpentBefore]:
        """Every budget."""
        self.num_read += 1
        await asyncio.sleep(self.delay_s)
        if self.is_away:
            raise StoreUnavailable("away")
        return [SpentBefore(key, amount, None) for key, amount in self.spent.items()]


@pytest.fixture(params=[False, True], ids=["redis 7", "redis 8"])
def vectors(request: pytest.FixtureRequest) -> bool:
    """Each kind of Redis in turn."""
    return bool(request.param)


@pytest.fixture
async def server(vectors: bool) -> AsyncIterator[RedisServer]:
    """A Redis whose replicas need not wait for others."""
    async with RedisServer(vectors=vectors, options={"repl-diskless-sync-delay": "0"}) as server:
        yield server


@pytest.fixture
async def replica(vectors: bool) -> AsyncIterator[RedisServer]:
    """Another one."""
    async with RedisServer(vectors=vectors) as server:
        yield server


async def test_redis_is_new_knows_what_was_spent_before_the_first_call(server: RedisServer) -> None:
    """Of as many budgets as there are; who comes later changes nothing, whatever he believes."""
    books = Books(budget=pico(0.75), **{f"session {number}": pico(0.000001) for number in range(450)})
    async with counting(server.url, read_spent=books.read) as counters:
        assert isinstance(await counters.reserve((dollars(0.5), slot())), Hold)
        assert isinstance(await counters.reserve((dollars(0.5),)), Full)
        assert await counters.spent(BUDGET) == [(pico(0.75), pico(0.5))]
        assert await counters.spent(["session 0", "session 449"]) == [(pico(0.000001), 0)] * 2
        other = Books(budget=pico(0.875))
        async with counting(server.url, read_spent=other.read) as late:
            assert await late.spent(BUDGET) == [(pico(0.75), pico(0.5))]
        assert (books.num_read, other.num_read) == (1, 0)


async def test_redis_is_flushed_is_told_and_calls_under_way_hold_what_they_held(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """No call notices; by two processes at once it is told only once what there was."""
    books = Books()
    async with (
        counting(server.url, read_spent=books.read) as one,
        counting(server.url, read_spent=books.read) as two,
        Redis.from_url(server.url) as redis,
    ):
        for counters in (one, two):
            counters.settle(await hold(counters, dollars(0.25)), (pico(0.25),))
            await told(counters)
        books.spent = {"budget": pico(0.5)}
        going_on = await hold(one, slot(3), dollars(0.25))
        await until(lambda: books.num_read == 1)
        # A connection that has lasted for less is not made anew at once.
        await asyncio.sleep(1.1)
        await redis.flushall()
        answers = await asyncio.gather(*[each.reserve((slot(3), dollars(0.5))) for each in (one, two)])
        # Whichever comes first has what is held beside it or not; nobody begins at zero.
        assert sum(isinstance(answer, Hold) for answer in answers) <= 1
        await told(one)
        spent, held = (await two.spent(BUDGET))[0]  # type: ignore[index]
        assert spent == pico(0.5)
        assert held in (pico(0.25), pico(0.75))
        one.settle(going_on, (0, pico(0.125)))
        await told(one)
        assert (await two.spent(BUDGET))[0][0] == pico(0.625)  # type: ignore[index]
        assert [each.statistics().outages for each in (one, two)] == [0, 0]
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_replica_that_lags_takes_over_is_told_what_it_lacks(server: RedisServer, replica: RedisServer) -> None:
    """What was spent since it was told last; what it had is not counted twice."""
    books = Books()
    async with SlowProxy(server.port) as proxy, Redis.from_url(replica.url) as promoted:
        async with counting(f"redis://127.0.0.1:{proxy.port}", read_spent=books.read) as counters:
            counters.settle(await hold(counters, dollars(0.25)), (pico(0.25),))
            await told(counters)
            await promoted.replicaof("127.0.0.1", server.port)
            async with asyncio.timeout(10):
                while not await promoted.exists("{test:limits}:budget:budget"):
                    await asyncio.sleep(0.01)
            await promoted.replicaof("NO", "ONE")
            counters.settle(await hold(counters, dollars(0.5)), (pico(0.5),))
            await told(counters)
            books.spent = {"budget": pico(0.75)}
            proxy.target = replica.port
            await server.kill()
            await until(lambda: counters.statistics().is_away)
            await until(lambda: not counters.statistics().is_away)

            assert await counters.spent(BUDGET) == [(pico(0.75), 0)]
            assert isinstance(await counters.reserve((dollars(0.25),)), Hold)


async def test_ledger_is_away_calls_go_on_and_it_is_told_when_that_is_back(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so; nothing is refused for want of it, and what was spent meanwhile stays."""
    books = Books(budget=pico(0.75))
    books.is_away = True
    async with counting(server.url, read_spent=books.read, lease_s=0.9) as counters:
        counters.settle(await hold(counters, dollars(0.5)), (pico(0.25),))
        await until(lambda: books.num_read > 2)
        assert await counters.spent(BUDGET) == [(pico(0.25), 0)]
        books.is_away = False
        async with asyncio.timeout(10):
            while await counters.spent(BUDGET) != [(pico(0.75), 0)]:
                await asyncio.sleep(0.01)
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "redis lacks what was spent of budgets before, until the ledger says it"
    ]


@pytest.mark.timed
async def test_ledger_does_not_answer_keeps_calls_back_for_no_longer_than_redis_may(server: RedisServer) -> None:
    """They do without Redis until it is decided, and with it once it has taken two seconds."""
    books = Books(budget=pico(0.75))
    books.delay_s = 60.0
    async with counting(server.url, read_spent=books.read, timeout_s=0.2, when_away="allow") as counters:
        began = asyncio.get_running_loop().time()
        answer = await hold(counters, dollars(0.5))
        assert asyncio.get_running_loop().time() - began < 1.0
        assert not answer.is_counted
        await until(lambda: not counters.statistics().is_away)
        assert (await hold(counters, dollars(0.5))).is_counted
        assert books.num_read == 1


async def test_redis_does_not_say_who_it_is_an_empty_one_is_told(server: RedisServer) -> None:
    """Rights to count are all that is needed."""
    books = Books(budget=pico(0.75))
    async with Redis.from_url(server.url) as redis:
        rights = "~{test:limits}* +@all -@admin -@dangerous"
        await redis.execute_command("ACL", "SETUSER", "gateway", "on", ">word", *rights.split())
        url = f"redis://gateway:word@127.0.0.1:{server.port}/0"
        async with counting(url, read_spent=books.read) as counters:
            assert await counters.spent(BUDGET) == [(pico(0.75), 0)]
            await redis.flushdb()
            assert isinstance(await counters.reserve((dollars(0.5),)), Hold)
            assert await counters.spent(BUDGET) == [(pico(0.75), pico(0.5))]
            assert books.num_read == 2

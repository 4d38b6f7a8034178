"""Whose an object is: remembered within bounds, shared where there is a place for it, lost without harm."""

from __future__ import annotations

from pathlib import Path

from gateway import owners as module
from gateway.owners import Owners
from gateway.owners_file import OwnersInFile
from policies.owner import TTL_S, Owner
from policies.owners_redis import build_owners_redis
from tests.support.clock import FakeClock
from tests.support.redis_server import RedisServer, redis_policy

RED, BLUE = Owner("red", "all", "one"), Owner("blue", "all", "two")


async def test_owner_is_found_until_the_time_is_over() -> None:
    """And the first one stays it."""
    clock = FakeClock()
    owners = Owners(clock)
    await owners.put("a", RED)
    await owners.put("a", BLUE)

    assert await owners.find("a") == RED
    await clock.advance(TTL_S)
    assert await owners.find("a") is None
    await owners.put("a", BLUE)
    assert await owners.find("a") == BLUE


async def test_who_makes_many_objects_loses_its_own_first() -> None:
    """A flood of one tenant takes nothing from another."""
    owners = Owners(FakeClock())
    await owners.put("of-blue", BLUE)
    for number in range(module.MAX_OBJECTS + 10):
        await owners.put(f"r{number}", RED)

    assert await owners.find("of-blue") == BLUE
    assert await owners.find("r0") is None
    assert await owners.find(f"r{module.MAX_OBJECTS}") == RED


async def test_ids_that_are_too_long_are_not_remembered() -> None:
    """An upstream's answer may say anything."""
    owners = Owners(FakeClock())
    await owners.put("x" * 1000, RED)

    assert await owners.find("x" * 1000) is None


async def test_file_is_shared_and_outlives_the_process(tmp_path: Path) -> None:
    """As long as an object is remembered at all."""
    clock = FakeClock()
    first, second = (Owners(clock, OwnersInFile(tmp_path / "objects.sqlite3", clock)) for _ in range(2))
    await first.open()
    await second.open()
    await first.put("a", RED)
    await second.put("a", BLUE)
    found = await second.find("a")
    await first.aclose()
    await clock.advance(TTL_S)
    late = await second.find("a")
    await second.aclose()

    assert (found, late, await second.find("a")) == (RED, None, None)


async def test_file_keeps_the_first_owner(tmp_path: Path) -> None:
    """Also where whoever puts did not find it; until its time is over."""
    clock = FakeClock()
    kept = OwnersInFile(tmp_path / "objects.sqlite3", clock)
    await kept.open()
    await kept.put("a", RED)
    await kept.put("a", BLUE)
    found = await kept.find("a")
    await clock.advance(TTL_S)
    await kept.put("a", BLUE)
    late = await kept.find("a")
    await kept.aclose()

    assert (found, late) == (RED, BLUE)


async def test_replicas_share_a_redis_and_bear_its_end() -> None:
    """What a process has seen itself it knows without."""
    clock = FakeClock()
    async with RedisServer() as server:
        policy = redis_policy(server.url, "1s")
        first, second = (Owners(clock, build_owners_redis(policy, clock)) for _ in range(2))
        await first.open()
        await second.open()
        await first.put("a", RED)
        assert await second.find("a") == RED
        await server.kill()
        assert await first.find("a") == RED
        assert await second.find("b") is None
        await first.aclose()
        await second.aclose()

"""Whose an object is: remembered within bounds, shared where there is a place for it, lost without harm."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.api import owners as module
from gateway.api.owners import Owners
from gateway.api.owners_file import OwnersInFile
from policies.objects.owner import TTL_S, Owner
from policies.objects.owners_redis import build_owners_redis
from tests.support.clock import FakeClock
from tests.support.servers.redis_server import RedisServer, redis_policy

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


async def test_clock_that_jumps_ahead_makes_nobody_forgotten(tmp_path: Path) -> None:
    """What is made meanwhile takes no other away."""
    clock = FakeClock()
    owners = OwnersInFile(tmp_path / "objects.sqlite3", clock)
    await owners.open()
    await owners.put("a", RED)
    clock.jump(2 * TTL_S)
    await owners.put("b", BLUE)
    clock.jump(-2 * TTL_S)

    assert [await owners.find("a"), await owners.find("b")] == [RED, BLUE]
    await owners.aclose()


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


async def test_two_who_put_at_once_agree_on_the_first(tmp_path: Path) -> None:
    """In one process, and in two that share something."""
    clock = FakeClock()
    first, second = (Owners(clock, OwnersInFile(tmp_path / "objects.sqlite3", clock)) for _ in range(2))
    await first.open()
    await second.open()
    await asyncio.gather(first.put("a", RED), first.put("a", BLUE), second.put("a", BLUE))
    found = {await owners.find("a") for owners in (first, second)}
    await first.aclose()
    await second.aclose()

    assert len(found) == 1


async def test_whoever_has_most_gives_way_whoever_comes() -> None:
    """With many tenants, sizes that go up and down, and objects that end."""
    clock = FakeClock()
    owners = Owners(clock)
    most = module.MAX_OBJECTS // 2
    for number in range(module.MAX_OBJECTS):
        await owners.put(f"o{number}", RED if number < most else Owner(f"t{number}", "all", "one"))
    await owners.put("more", BLUE)
    await owners.put("and-more", BLUE)

    assert [await owners.find(f"o{number}") for number in (0, 1, 2)] == [None, None, RED]
    assert await owners.find(f"o{module.MAX_OBJECTS - 1}") is not None
    assert await owners.find("more") == BLUE


async def test_redis_keeps_the_first_owner() -> None:
    """Also where the second one has not found it: another process may have been quicker by a moment."""
    clock = FakeClock()
    async with RedisServer() as server:
        policy = redis_policy(server.url, "1s")
        first, second = (build_owners_redis(policy, clock) for _ in range(2))
        await first.open()
        await second.open()
        kept = [await first.put("a", RED), await second.put("a", BLUE)]
        assert kept == [RED, RED]
        assert await second.find("a") == RED
        await first.aclose()
        await second.aclose()


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

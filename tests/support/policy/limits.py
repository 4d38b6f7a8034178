"""Counters of limits and budgets in a real Redis, and wants of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from backends.clock import SystemClock
from policies.limits.counters import Hold, Rate, Slots, Spend, Want
from policies.limits.redis.address import RedisAddress
from policies.limits.redis.keeper import LeaseTimes
from policies.limits.redis.packing import unpack
from policies.limits.redis.refilling import ReadSpentBefore
from policies.limits.redis.replies import Reply
from policies.limits.redis.scripts import ScriptName, Scripts
from policies.limits.redis.settings import LimitsStore, WhenAway
from policies.limits.redis.store import RedisCounters
from policies.limits.redis.wire import RedisWire

PREFIX = "test"
PATIENT_S = 10.0
"""What a busy machine may take until something has happened that is waited for."""


@asynccontextmanager
async def counting(
    url: str,
    *,
    when_away: WhenAway = "refuse",
    timeout_s: float = 2.0,
    lease_s: float = 15.0,
    read_spent: ReadSpentBefore | None = None,
) -> AsyncIterator[RedisCounters]:
    """Counters that are open. Those that do not test time have a lot of it."""
    settings = LimitsStore(when_away=when_away).model_copy(update={"timeout": timeout_s})
    times = LeaseTimes(lease_s, lease_s / 3)
    address = RedisAddress.from_url(url)
    counters = RedisCounters(address, settings, SystemClock(), prefix=PREFIX, read_spent=read_spent, times=times)
    await counters.open()
    # They connect when they are first asked.
    await counters.spent([])
    try:
        yield counters
    finally:
        await counters.aclose()


@asynccontextmanager
async def scripted(url: str) -> AsyncIterator[Callable[..., Awaitable[Reply | list[int]]]]:
    """Runs a script by its name, with arguments of bytes: what a process would send."""
    scripts = Scripts(PREFIX)
    wire = await RedisAddress.from_url(url).connect(lambda: RedisWire(PATIENT_S, lambda: None, lambda: None))
    for command in scripts.loading():
        await wire.ask(command)

    async def run(name: ScriptName, *arguments: bytes) -> Reply | list[int]:
        reply = await wire.ask(scripts.command(name, *arguments))
        return unpack(reply) if isinstance(reply, bytes) else reply

    yield run
    wire.abort()


async def hold(counters: RedisCounters, *wants: Want) -> Hold:
    """What is got by who is sure to get it."""
    answer = await counters.reserve(wants)
    assert isinstance(answer, Hold), answer
    return answer


async def told(counters: RedisCounters) -> None:
    """Wait until Redis has carried out what it was sent before: it replies in order."""
    await counters.spent(["whatever"])


def tokens(amount: int = 1, *, key: str = "tokens", capacity: int = 10, per_minute: int = 1) -> Rate:
    """Of a bucket into which next to nothing flows while a test lasts."""
    return Rate(key, per_minute, capacity, amount)


def slot(most: int = 1, *, key: str = "slots") -> Slots:
    """One of so many."""
    return Slots(key, most)


def dollars(worst: float, *, most: float = 1.0, key: str = "budget", ends_at: float | None = None) -> Spend:
    """Of a budget, in dollars that are whole micro-dollars."""
    return Spend(key, pico(most), pico(worst), ends_at)


def pico(amount: float) -> int:
    """Pico-dollars of whole micro-dollars."""
    return round(amount * 1e6) * 1_000_000


async def until(is_so: Callable[[], bool], limit_s: float = PATIENT_S) -> None:
    """Wait for something that is bound to happen."""
    async with asyncio.timeout(limit_s):
        while not is_so():
            await asyncio.sleep(0.005)

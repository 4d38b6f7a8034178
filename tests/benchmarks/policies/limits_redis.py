"""What limits and budgets in Redis cost a call: CPU of this process, and how long the call waits.

    python -m tests.benchmarks.policies.limits_redis [--url redis://...] [--calls 1000] [--rate 2000] [--turns 20]

A call reserves four counters (two buckets, a slot, a budget) and settles them; `CPU` is user and system time of this
process for both together. `serial`: one call after another. `open loop`: calls come at a rate, however long they take,
and wait from the moment at which they were to come. `at once`: 32 callers. Beside it redis-py runs the same scripts.
All take turns, and what is printed of each figure is the least of all turns and the median: others at work on the
machine make turns dearer and none cheaper. Without `--url` a redis-server of its own is started.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import uvloop
from redis.asyncio import Redis

from backends.clock import SystemClock
from policies.limits.counters import Hold, Rate, Slots, Spend, Want
from policies.limits.redis.address import RedisAddress
from policies.limits.redis.packing import pack_used, pack_wants
from policies.limits.redis.scripts import Scripts, pack_command
from policies.limits.redis.wire import RedisWire
from tests.support.policy.limits import counting
from tests.support.servers.redis_server import RedisServer

_NUM_KEYS = 1000
_MUCH = 10**9
_CALLERS = 32
_TURN_S = 0.5


def _wants(number: int) -> tuple[Want, ...]:
    key = f"key{number % _NUM_KEYS}"
    return (
        Rate(f"rpm:{key}", _MUCH, _MUCH, 1),
        Rate(f"tpm:{key}", _MUCH, _MUCH, 700),
        Slots(f"concurrent:{key}", 10_000),
        Spend(f"day:{key}", 10**18, 5 * 10**9, SystemClock.wall() + 86_400),
    )


_USED = (1, 512, 0, 3 * 10**9)
Call = Callable[[int], Awaitable[None]]


class Figures:
    """Of one way to call: CPU and waits of each turn, in microseconds."""

    def __init__(self) -> None:
        self._turns: list[tuple[float, float, float]] = []

    def add(self, waits_s: list[float], cpu_s: float) -> None:
        """Of a turn."""
        waits_s.sort()
        p50, p99 = (1e6 * waits_s[int(len(waits_s) * share)] for share in (0.5, 0.99))
        self._turns.append((1e6 * cpu_s / len(waits_s), p50, p99))

    def line(self, name: str) -> str:
        """The least and the median of each."""
        columns = [sorted(column) for column in zip(*self._turns, strict=True)]
        shown = [f"{column[0]:8.1f} {column[len(column) // 2]:8.1f}" for column in columns]
        return f"{name:<42}" + "   ".join(shown)


async def _serial(call: Call, num_calls: int) -> tuple[list[float], float]:
    waits_s = []
    begin_cpu = time.process_time()
    for number in range(num_calls):
        begin = time.perf_counter()
        await call(number)
        waits_s.append(time.perf_counter() - begin)
    return waits_s, time.process_time() - begin_cpu


async def _open_loop(call: Call, rate: float, seconds: float) -> tuple[list[float], float]:
    waits_s: list[float] = []
    loop = asyncio.get_running_loop()
    draw = random.Random(1)

    async def timed(number: int, due: float) -> None:
        await call(number)
        waits_s.append(loop.time() - due)

    begin_cpu = time.process_time()
    begin = due = loop.time()
    number = 0
    async with asyncio.TaskGroup() as group:
        while due < begin + seconds:
            await asyncio.sleep(max(0.0, due - loop.time()))
            while due <= loop.time():
                group.create_task(timed(number, due))
                due += draw.expovariate(rate)
                number += 1
    return waits_s, time.process_time() - begin_cpu


async def _at_once(call: Call, num_calls: int) -> tuple[list[float], float]:
    waits_s: list[float] = []

    async def caller(first: int) -> None:
        for number in range(first, num_calls, _CALLERS):
            begin = time.perf_counter()
            await call(number)
            waits_s.append(time.perf_counter() - begin)

    begin_cpu = time.process_time()
    async with asyncio.TaskGroup() as group:
        for first in range(_CALLERS):
            group.create_task(caller(first))
    return waits_s, time.process_time() - begin_cpu


async def _measure(url: str, options: argparse.Namespace) -> None:
    async with counting(url) as counters, Redis.from_url(url) as redis:
        scripts = Scripts("peer")
        for command in scripts.texts.values():
            await redis.execute_command("SCRIPT", "LOAD", command)
        reserve, settle, renew = (scripts.digests[name] for name in ("reserve", "settle", "renew"))
        await redis.execute_command("EVALSHA", renew, 1, scripts.key, "peer", "1", "86400000")

        async def ours(number: int) -> None:
            held = await counters.reserve(_wants(number))
            assert isinstance(held, Hold), held
            counters.settle(held, _USED)

        async def redis_py(number: int) -> None:
            packed = pack_wants(_wants(number))
            await redis.execute_command("EVALSHA", reserve, 1, scripts.key, "peer", "1", "0", number, packed)
            used = pack_used([(str(number), _USED)])
            await redis.execute_command("EVALSHA", settle, 1, scripts.key, "peer", used)

        wire = await RedisAddress.from_url(url).connect(lambda: RedisWire(10.0, lambda: None, lambda: None))
        ping = pack_command(b"PING")

        async def bare(number: int) -> None:
            await wire.ask(ping)

        async def nothing(number: int) -> None:
            _wants(number)

        rate = f"{options.rate:g}/s"
        ways: dict[str, Callable[[], Awaitable[tuple[list[float], float]]]] = {
            "the benchmark itself, serial": lambda: _serial(nothing, options.calls),
            "a PING on the same connection, serial": lambda: _serial(bare, options.calls),
            "this store, serial": lambda: _serial(ours, options.calls),
            "redis-py, serial (waits for both)": lambda: _serial(redis_py, options.calls),
            f"the benchmark itself, open loop {rate}": lambda: _open_loop(nothing, options.rate, _TURN_S),
            f"a PING, open loop {rate}": lambda: _open_loop(bare, options.rate, _TURN_S),
            f"this store, open loop {rate}": lambda: _open_loop(ours, options.rate, _TURN_S),
            f"this store, {_CALLERS} at once": lambda: _at_once(ours, options.calls),
        }
        figures = {name: Figures() for name in ways}
        for turn in range(options.turns + 1):
            for name, call in ways.items():
                waits_s, cpu_s = await call()
                if turn:
                    figures[name].add(waits_s, cpu_s)
        print(f"{'a call of four counters, and its end':<42}{'CPU us':>17}{'p50 us':>20}{'p99 us':>20}")
        print(f"{'':<42}" + "   ".join([f"{'least':>8} {'median':>8}"] * 3))
        for name, each in figures.items():
            print(each.line(name))


async def _run(options: argparse.Namespace) -> None:
    if options.url is not None:
        await _measure(options.url, options)
        return
    async with RedisServer() as server:
        await _measure(server.url, options)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="A Redis for the benchmark alone.")
    parser.add_argument("--calls", type=int, default=1000, help="In a turn.")
    parser.add_argument("--rate", type=float, default=2000.0, help="Calls a second.")
    parser.add_argument("--turns", type=int, default=20)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""Processes that race for one budget or one limit in a real Redis, and what they have got of it together.

    python -m tests.support.policy.limits_race '{"url": ..., "kind": "budget", ...}'

is one of them: it says when it is ready, reads the moment at which all begin, and prints a line of JSON at its end.
Time of limits may be scaled: as much flows in during a second as otherwise during `scale` seconds, and what is measured
in seconds is measured in those.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

import msgspec

from policies.limits.bursts import burst_of_requests, burst_of_tokens
from policies.limits.counters import Full, Hold, Rate, Spend
from policies.limits.redis.store import RedisCounters
from tests.support.policy.limits import counting

WORST = 1_000_000_000_000
"""The most that a call of the race for a budget can cost: a dollar."""
MEAN_TOKENS = 500
_READY_S = 60.0
"""What processes may take to be ready."""
_SIGNAL_S = 0.1
"""What they may take to learn that all are."""


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """What every process is told."""

    url: str
    kind: Literal["budget", "requests", "tokens"]
    key: str = "race"
    """Of what they race for."""
    callers: int = 8
    lease_s: float = 15.0
    seed: int = 0
    most: int = 0
    """Pico-dollars of the budget."""
    per_minute: int = 0
    burst_s: float = 6.0
    minutes: float = 10.0
    scale: float = 1.0

    @property
    def rate(self) -> Rate:
        """The bucket, as fast as time is."""
        burst = burst_of_tokens if self.kind == "tokens" else burst_of_requests
        return Rate(self.key, round(self.per_minute * self.scale), burst(self.per_minute, self.burst_s), 1)

    @property
    def took_s(self) -> float:
        """How long the race for a limit takes here."""
        return self.minutes * 60 / self.scale


class Result(msgspec.Struct, frozen=True):
    """Of one process: each call's moment and what it has used, and how many were refused."""

    calls: list[tuple[float, int]]
    refused: int


class RaceProcess:
    """A process that takes part."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    async def result(self) -> Result | None:
        """What it got; None where it was killed."""
        output, _ = await self._process.communicate()
        return msgspec.json.decode(output, type=Result) if output else None


async def start(race: Race, num_processes: int) -> list[RaceProcess]:
    """Let so many processes begin together once all are ready, each with draws of its own."""
    pipe = asyncio.subprocess.PIPE
    processes = []
    for seed in range(num_processes):
        told = msgspec.json.encode(msgspec.structs.replace(race, seed=race.seed + seed)).decode()
        command = (sys.executable, "-m", "tests.support.policy.limits_race", told)
        processes.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
    async with asyncio.timeout(_READY_S):
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
    # Monotonic seconds, which processes of one machine share.
    begins_at = time.monotonic() + _SIGNAL_S
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{begins_at}\n".encode())
        await process.stdin.drain()
    return [RaceProcess(process) for process in processes]


class Admitted(msgspec.Struct, frozen=True):
    """What came of a race for a limit, as shares of what is due."""

    whole: float
    """Of burst and rate x time."""
    worst_minute: float
    """Of what flows in during a minute."""


def admitted(race: Race, results: Sequence[Result]) -> Admitted:
    """How much was let in altogether, and in the worst window of 60 s."""
    calls = sorted((at, used) for result in results for at, used in result.calls)
    sums = [0]
    for _, used in calls:
        sums.append(sums[-1] + used)
    moments = [at for at, _ in calls]
    window_s = 60 / race.scale
    ends = [bisect_left(moments, at + window_s) for at in moments]
    worst = max(sums[end] - sums[begin] for begin, end in enumerate(ends))
    due = race.per_minute * (race.minutes + race.burst_s / 60)
    return Admitted(sums[-1] / due, worst / race.per_minute)


async def _take_part(race: Race) -> Result:
    draw = random.Random(race.seed)
    calls: list[tuple[float, int]] = []
    async with counting(race.url, timeout_s=5.0, lease_s=race.lease_s) as counters:
        print("ready", flush=True)
        begins_at = float(await asyncio.to_thread(sys.stdin.readline))
        await asyncio.sleep(begins_at - time.monotonic())
        if race.kind == "budget":
            calling = [_spend(race, counters, draw, calls) for _ in range(race.callers)]
        else:
            calling = [_use(race, counters, draw, calls, begins_at + race.took_s) for _ in range(race.callers)]
        refused = await asyncio.gather(*calling)
    return Result(calls, sum(refused))


async def _spend(race: Race, counters: RedisCounters, draw: random.Random, calls: list[tuple[float, int]]) -> int:
    """Call until the budget is spent; how often it was full."""
    num_refused = 0
    while True:
        held = await counters.reserve((Spend(race.key, race.most, WORST),))
        if isinstance(held, Hold):
            await asyncio.sleep(draw.uniform(0.001, 0.02))
            cost = round(draw.uniform(0.05, 1.0) * WORST / 1000) * 1000
            counters.settle(held, (cost,))
            calls.append((time.monotonic(), cost))
            continue
        assert isinstance(held, Full), held
        if held.retry_after_s is None:
            return num_refused
        num_refused += 1
        await asyncio.sleep(draw.uniform(0.001, 0.01))


async def _use(
    race: Race, counters: RedisCounters, draw: random.Random, calls: list[tuple[float, int]], ends_at: float
) -> int:
    """Call as often as it is let in until time is over; how often it was not."""
    num_refused = 0
    rate = race.rate
    while time.monotonic() < ends_at:
        asks, uses = 1, 1
        if race.kind == "tokens":
            asks, uses = MEAN_TOKENS, round(draw.uniform(0.2, 1.8) * MEAN_TOKENS)
        held = await counters.reserve((msgspec.structs.replace(rate, amount=asks),))
        now = time.monotonic()
        if isinstance(held, Hold):
            if now < ends_at:
                calls.append((now, uses))
            if race.kind == "tokens":
                await asyncio.sleep(draw.uniform(1.0, 5.0) / race.scale)
            counters.settle(held, (uses,))
            continue
        assert isinstance(held, Full), held
        assert held.retry_after_s is not None, "a bucket fills"
        num_refused += 1
        await asyncio.sleep(held.retry_after_s)
    return num_refused


if __name__ == "__main__":
    told = msgspec.json.decode(sys.argv[1], type=Race)
    sys.stdout.write(msgspec.json.encode(asyncio.run(_take_part(told))).decode())

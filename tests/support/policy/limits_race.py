"""Processes that race for one budget or one limit in a real Redis, and what they have got of it together.

    python -m tests.support.policy.limits_race '{"url": ..., "kind": "budget", ...}'

is one of them: it prints a line of JSON at its end. Time of limits may be scaled: as much flows in during a second as
otherwise during `scale` seconds, and what is measured in seconds is measured in those.
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


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """What every process is told."""

    url: str
    kind: Literal["budget", "requests", "tokens"]
    key: str = "race"
    """Of what they race for."""
    begins_at: float
    """Monotonic seconds, which processes of one machine share."""
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
    """Let so many processes begin, each with draws of its own."""
    processes = []
    for seed in range(num_processes):
        told = msgspec.json.encode(msgspec.structs.replace(race, seed=race.seed + seed)).decode()
        command = (sys.executable, "-m", "tests.support.policy.limits_race", told)
        processes.append(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))
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
        await asyncio.sleep(race.begins_at - time.monotonic())
        each = _spend if race.kind == "budget" else _use
        refused = await asyncio.gather(*[each(race, counters, draw, calls) for _ in range(race.callers)])
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


async def _use(race: Race, counters: RedisCounters, draw: random.Random, calls: list[tuple[float, int]]) -> int:
    """Call as often as it is let in until time is over; how often it was not."""
    num_refused = 0
    rate = race.rate
    ends_at = race.begins_at + race.took_s
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

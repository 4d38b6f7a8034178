"""Processes that race for one budget and one limit in one Redis: what they get together, beside what they may.

    python -m tests.benchmarks.faults.limits_race [--processes 4] [--scale 10] [--minutes 10] [--redis8]

Ten minutes of a limit go by in a minute: as much flows in during a second as otherwise in ten, with the same burst.
Round trips take as long as they take, so what they spoil weighs ten times as much. Moments are those at which a process
has its answer, by the machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import msgspec

from tests.support.policy.limits import counting
from tests.support.policy.limits_race import WORST, Race, RaceProcess, Result, admitted, start
from tests.support.servers.redis_server import RedisServer

_CALLS_OF_BUDGET = 2000
_LEASE_S = 3.0


async def _results(processes: list[RaceProcess]) -> list[Result]:
    return [result for each in processes if (result := await each.result()) is not None]


def _report(what: str, asked: str, measured: str) -> None:
    print(f"{what:<82}{asked:<20}{measured}", flush=True)


async def _race_for_budget(race: Race, num_processes: int, *, is_killed: bool) -> None:
    race = msgspec.structs.replace(
        race, kind="budget", key=f"budget{is_killed}", most=_CALLS_OF_BUDGET * WORST, lease_s=_LEASE_S
    )
    processes = await start(race, num_processes)
    killed_at = 0.0
    if is_killed:
        await asyncio.sleep(0.4)
        processes[0].kill()
        killed_at = time.monotonic()
    results = await _results(processes)
    async with counting(race.url, lease_s=_LEASE_S) as counters:
        while True:
            told = await counters.spent([race.key])
            assert isinstance(told, list), told
            spent, held = told[0]
            if not held:
                break
            await asyncio.sleep(0.01)
    took_s = time.monotonic() - killed_at
    known = sum(cost for result in results for _, cost in result.calls)
    what = f"budget, {num_processes} processes" + (", one killed" if is_killed else "")
    _report(
        f"{what}: overspent, in calls of the largest kind",
        "0 to 1 a process",
        f"{spent / WORST - race.most / WORST:.2f}",
    )
    if is_killed:
        _report(
            "  held in the end, and how long after the kill", f"0, {_LEASE_S:g} s and more", f"{held}, {took_s:.1f} s"
        )
    else:
        _report("  counted by Redis beyond what was spent, pico-dollars", "0", str(spent - known))


async def _race_for_limit(race: Race, num_processes: int) -> None:
    results = await _results(await start(race, num_processes))
    got = admitted(race, results)
    num_calls, refused = sum(len(each.calls) for each in results), sum(each.refused for each in results)
    _report(
        f"{race.kind}, {num_processes} processes, {num_calls} calls, {refused} refused: of burst + rate x time",
        "97 % to 101 %",
        f"{100 * got.whole:.2f} %",
    )
    _report("  worst 60 s, of the rate", "110 % at most", f"{100 * got.worst_minute:.2f} %")


async def _run(options: argparse.Namespace) -> None:
    async with RedisServer(vectors=True if options.redis8 else None) as server:
        race = Race(url=server.url, kind="requests", minutes=options.minutes, scale=options.scale)
        _report("", "asked", "measured")
        for is_killed in (False, True):
            await _race_for_budget(race, options.processes, is_killed=is_killed)
        await _race_for_limit(msgspec.structs.replace(race, key="rpm", per_minute=600), options.processes)
        tokens = msgspec.structs.replace(race, key="tpm", kind="tokens", per_minute=100_000, callers=6)
        await _race_for_limit(tokens, options.processes)


def main() -> None:
    """Print what was asked and what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--scale", type=float, default=10.0, help="Seconds of a limit in a second.")
    parser.add_argument("--minutes", type=float, default=10.0, help="Of a limit.")
    parser.add_argument("--redis8", action="store_true", help="A Redis 8 instead of the one that is installed.")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()

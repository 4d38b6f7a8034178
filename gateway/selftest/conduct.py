"""Runs checks, some side by side, each within its limit; a check that breaks is a failure and not the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.selftest.bench import Bench, GatewayTarget
from gateway.selftest.check import Check
from gateway.selftest.verdict import CheckOutcome, failed, skipped

Tell = Callable[[int, int, str], None]
"""Hears how many of how many checks are done, and the fault that is next."""

_QUICK_LIMIT_S = 45.0
_LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of one check, and how long it took."""

    check: Check
    outcome: CheckOutcome
    took_s: float


async def conduct(checks: Sequence[Check], benches: Sequence[Bench], tell: Tell) -> list[CheckResult]:
    """Try these against the copied policy: as many at once as there are benches, then those that are timed, one by one.

    The benches have been entered. Results come in the order of `checks`.
    """
    results: dict[str, CheckResult] = {}

    async def take(waiting: Iterator[Check], bench: Bench) -> None:
        limit_s = _QUICK_LIMIT_S if bench.is_quick else _LIMIT_S
        for check in waiting:
            tell(len(results), len(checks), check.fault)
            await bench.clear()
            results[check.id] = await _result(check, check.run(bench), limit_s)

    untimed = (check for check in checks if not check.is_timed)
    async with asyncio.TaskGroup() as group:
        for bench in benches:
            group.create_task(take(untimed, bench))
    await take((check for check in checks if check.is_timed), benches[0])
    tell(len(checks), len(checks), "")
    return [results[check.id] for check in checks]


async def conduct_outside(checks: Sequence[Check], target: GatewayTarget, tell: Tell) -> list[CheckResult]:
    """Try those that can be tried from outside against a running gateway; the others are skipped."""
    results = []
    for number, check in enumerate(checks):
        tell(number, len(checks), check.fault)
        if check.outside is None:
            outcome = skipped("needs upstreams of ours: give the gateway's policy file instead of --url")
            results.append(CheckResult(check, outcome, 0.0))
        else:
            limit_s = _QUICK_LIMIT_S if target.is_quick else _LIMIT_S
            results.append(await _result(check, check.outside(target), limit_s))
    tell(len(checks), len(checks), "")
    return results


async def _result(check: Check, running: Awaitable[CheckOutcome], limit_s: float) -> CheckResult:
    began = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            outcome = await running
    except TimeoutError:
        outcome = failed("no end", f"something did not answer within its limit, or the check took over {limit_s:.0f} s")
    except Exception as error:  # a named border: what a lying gateway makes of a check must not end the others
        said = f"{type(error).__name__}: {error}".strip()[:300]
        outcome = failed("broke off", f"the gateway did what the check did not expect: {said}")
    return CheckResult(check, outcome, time.monotonic() - began)

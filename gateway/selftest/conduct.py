"""Runs checks, several at once, each with a time limit. A check that raises counts as failed; the others go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.selftest.bench import Bench, GatewayTarget
from gateway.selftest.check import Check
from gateway.selftest.verdict import CheckOutcome, failed, skipped

OnProgress = Callable[[int, int, str], None]
"""Called with how many of how many checks are done, and the next fault."""

_QUICK_LIMIT_S = 45.0
_LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of one check, and how long it took."""

    check: Check
    outcome: CheckOutcome
    took_s: float


async def conduct(checks: Sequence[Check], benches: Sequence[Bench], on_progress: OnProgress) -> list[CheckResult]:
    """Run checks against the copied policy: one on each bench at a time, and the timed ones alone at the end.

    The benches have been entered. The results are in the order of `checks`.
    """
    results: dict[str, CheckResult] = {}

    async def run_checks(waiting: Iterator[Check], bench: Bench) -> None:
        limit_s = _QUICK_LIMIT_S if bench.is_quick else _LIMIT_S
        for check in waiting:
            on_progress(len(results), len(checks), check.fault)
            await bench.clear()
            results[check.id] = await _result(check, check.run(bench), limit_s)

    untimed = (check for check in checks if not check.is_timed)
    async with asyncio.TaskGroup() as group:
        for bench in benches:
            group.create_task(run_checks(untimed, bench))
    await run_checks((check for check in checks if check.is_timed), benches[0])
    on_progress(len(checks), len(checks), "")
    return [results[check.id] for check in checks]


async def conduct_outside(checks: Sequence[Check], target: GatewayTarget, on_progress: OnProgress) -> list[CheckResult]:
    """Run the checks that need nothing but requests against a running gateway; the others are skipped."""
    results = []
    for number, check in enumerate(checks):
        on_progress(number, len(checks), check.fault)
        if check.outside is None:
            outcome = skipped("needs upstreams of ours: give the gateway's policy file instead of --url")
            results.append(CheckResult(check, outcome, 0.0))
        else:
            limit_s = _QUICK_LIMIT_S if target.is_quick else _LIMIT_S
            results.append(await _result(check, check.outside(target), limit_s))
    on_progress(len(checks), len(checks), "")
    return results


async def _result(check: Check, running: Awaitable[CheckOutcome], limit_s: float) -> CheckResult:
    began = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            outcome = await running
    except TimeoutError:
        outcome = failed("no end", f"something did not answer within its limit, or the check took over {limit_s:.0f} s")
    except Exception as error:  # a named border: what a lying gateway makes of a check must not end the others
        problem = f"{type(error).__name__}: {error}".strip()[:300]
        outcome = failed("broke off", f"the gateway did what the check did not expect: {problem}")
    return CheckResult(check, outcome, time.monotonic() - began)

"""Runs the scenarios of failover and judges the outcome of each.

A call with a complete answer passes. A clear error is safe, if a better policy could have answered. A hang, a truncated
answer that looks complete, or a provider that is flooded with retries fails.
"""

from __future__ import annotations

import asyncio
import functools
import time

from gateway.selftest.bench import Bench
from gateway.selftest.check import Check
from gateway.selftest.failover.scenarios import SCENARIOS, Scenario
from gateway.selftest.failover.stage import FailoverOutcome, call, simplest, spare_lie, story_pieces
from gateway.selftest.upstream import Lie, ReceivedRequest
from gateway.selftest.verdict import CheckOutcome, failed, partial, passed, safe

_BUG = "report it: this is a bug of the gateway"
_SEE = "see docs/resilience.md"
_ALIVE_S = 10.0


async def try_scenario(bench: Bench, scenario: Scenario) -> CheckOutcome:
    """One call, or what the scenario's fault says, and the verdict."""
    async with bench.upstreams(2) as (first, spare):
        num_requests = 0

        def lie(request: ReceivedRequest) -> Lie:
            nonlocal num_requests
            num_requests += 1
            return scenario.lie(num_requests, bench.is_quick)

        first.plan = lie
        spare.plan = spare_lie
        sections = (scenario.quick or {}) if bench.is_quick else {}
        async with bench.gateway(simplest(first.url, spare.url, **sections)) as child:
            seen = await call(child, first, spare, scenario.hang_s)
            first.plan, first.usual = None, Lie(pieces=story_pieces("first"))
            alive = await call(child, first, spare, _ALIVE_S)
    note = "time limits are cut short" if sections else ""
    return _verdict(scenario, seen, note, is_alive=alive.is_rescued)


async def flap(bench: Bench) -> CheckOutcome:
    """The first upstream is down for a while, with a call every few seconds: all are answered, and it is used again."""
    down_s, every_s, count, back_s = (1.5, 0.2, 16, 1.5) if bench.is_quick else (60.0, 4.0, 20, 30.0)
    sections = {"circuit_breaker": {"open_for": "200ms"}} if bench.is_quick else {}
    async with bench.upstreams(2) as (first, spare):
        began = time.monotonic()
        back_at: list[float] = []

        def lie(request: ReceivedRequest) -> Lie:
            if request.at_s - began < down_s:
                return Lie(status=503)
            back_at.append(request.at_s - began)
            return Lie(pieces=story_pieces("first"))

        first.plan = lie
        spare.plan = spare_lie
        async with bench.gateway(simplest(first.url, spare.url, **sections)) as child:
            began = time.monotonic()
            calls = []
            for number in range(count):
                await asyncio.sleep(max(0.0, began + number * every_s - time.monotonic()))
                calls.append(await call(child, first, spare, 30.0))
    num_answered = sum(each.is_rescued for each in calls)
    num_down = sum(request.at_s - began < down_s for request in first.requests)
    measured = f"{num_answered} of {count} answered, {num_down} asked while it was down"
    if num_answered < count:
        return failed(measured, "calls were not answered though the spare was there", _SEE)
    if not back_at or back_at[0] > down_s + back_s:
        return failed(measured, f"it was not used again within {back_s:.0f} s", "set circuit_breaker.max_open_for")
    return passed(measured, "time limits are cut short" if sections else "")


def _verdict(scenario: Scenario, seen: FailoverOutcome, note: str, *, is_alive: bool) -> CheckOutcome:
    broken = [rule for rule in scenario.rules if not rule.holds(seen)]
    names = ", ".join(rule.name for rule in broken)
    if seen.answer is None:
        return failed(seen.attempts, "the call hangs", "set timeouts.first_token and timeouts.total")
    if seen.is_silent and not seen.is_rescued and scenario.wants_answer:
        return failed(seen.attempts, "half an answer looks whole", _BUG)
    if not is_alive:
        return failed(seen.attempts, "a call after it is not answered", _BUG)
    if any(rule.is_required for rule in broken):
        return failed(seen.attempts, f"not so: {names}", _SEE)
    if not scenario.wants_answer:
        if seen.is_rescued:
            return partial(seen.attempts, "another model was asked what the first one refused to hear")
        return passed(seen.attempts, note)
    if not seen.is_rescued:
        return safe(seen.attempts, f"a clear error, {seen.answer.status}", _SEE)
    return partial(seen.attempts, f"not so: {names}", _SEE) if broken else passed(seen.attempts, note)


def _check(scenario: Scenario) -> Check:
    return Check(scenario.id, scenario.fault, functools.partial(try_scenario, scenario=scenario))


CHECKS = (
    *(_check(each) for each in SCENARIOS[:-1]),
    Check("S15", "down for a minute, then back: used again", flap),
    _check(SCENARIOS[-1]),
)

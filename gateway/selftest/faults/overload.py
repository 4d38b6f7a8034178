"""Faults 21 to 23: three times what the server can do, quick refusals, and one tenant that floods."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from gateway.selftest.answers import chat_pieces
from gateway.selftest.bench import Bench, ask_way, quantile
from gateway.selftest.check import Check
from gateway.selftest.run import Child
from gateway.selftest.subject import ChatRoute, Key
from gateway.selftest.upstream import Lie, LyingUpstream, ReceivedRequest
from gateway.selftest.verdict import CheckOutcome, failed, partial, passed, skipped

_SLOTS = 4
_SERVICE_S = 0.1
_CAPACITY_PER_S = _SLOTS / _SERVICE_S
_LATE_S = 1.0
_NO_ADMISSION = skipped("no route of this policy has `admission`: nothing is turned away", "see docs/admission.md")


@dataclass(frozen=True, slots=True)
class _Call:
    """One call under load. Times in seconds."""

    key: str
    status: int
    is_good: bool
    sent_s: float
    took_s: float
    first_s: float
    retry_after_s: float | None


class _SlowServer:
    """Serves `_SLOTS` calls at once, each for `_SERVICE_S`; the others are queued, as in an engine."""

    def __init__(self) -> None:
        self._free_at = [0.0] * _SLOTS

    def lie(self, request: ReceivedRequest) -> Lie:
        """An answer that begins when there is room."""
        now = time.monotonic()
        slot = min(range(_SLOTS), key=self._free_at.__getitem__)
        self._free_at[slot] = max(now, self._free_at[slot]) + _SERVICE_S
        return Lie(delay_s=self._free_at[slot] - now, pieces=chat_pieces(("a ", "b ")))


async def _load(child: Child, way: ChatRoute, rates: dict[Key, float], seconds: float) -> list[_Call]:
    """Calls at a steady rate for each key, whether or not earlier ones have been answered."""
    calls: list[_Call] = []
    began = time.monotonic()

    async def one(key: Key, number: int) -> None:
        sent_at_s = time.monotonic()
        answer = await ask_way(child, way, f"load {key.name} {number} {sent_at_s}", stream=True, key=key)
        wait = answer.header("retry-after")
        calls.append(
            _Call(
                key.name,
                answer.status,
                answer.is_good,
                sent_at_s - began,
                time.monotonic() - sent_at_s,
                answer.first_s,
                float(wait) if wait.isdecimal() else None,
            )
        )

    async def flow(key: Key, rate: float, group: asyncio.TaskGroup) -> None:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            group.create_task(one(key, number))

    async with asyncio.TaskGroup() as group:
        for key, rate in rates.items():
            group.create_task(flow(key, rate, group))
    return calls


def _prepared(bench: Bench, way: ChatRoute) -> None:
    upstreams: list[LyingUpstream] = bench.all_of(way)
    for upstream in upstreams:
        upstream.plan = _SlowServer().lie


def _policy(bench: Bench, way: ChatRoute) -> dict[str, object]:
    parts = [{"ref": way.backends[0]}]
    sections = {"slo": {"ttft": "400ms"}, "admission": {"on_overload": "shed"}, "backends": parts}
    return bench.policy(way, **sections, cache=None, fallbacks=None, retry={"attempts": 0})


async def overload(bench: Bench) -> CheckOutcome:
    """Three times the load: hardly fewer answers in time than the server gives at its best."""
    way = bench.subject.admitting_way()
    if way is None:
        return _NO_ADMISSION
    seconds = bench.count(2, 15)
    keys = way.keys
    async with bench.gateway(_policy(bench, way)) as child:
        _prepared(bench, way)
        alone = await _load(child, way, {keys[0]: 0.7 * _CAPACITY_PER_S}, seconds)
        share = 3 * _CAPACITY_PER_S / len(keys[:3])
        crowd = await _load(child, way, dict.fromkeys(keys[:3], share), seconds)
    peak = sum(call.is_good for call in alone) / 0.7
    held = sum(call.is_good and call.first_s <= 0.8 for call in crowd) / peak
    shed = sum(call.status == 429 for call in crowd) / len(crowd)
    odd = [call.status for call in crowd if not call.is_good and call.status != 429]
    measured = f"{held:.0%} of the peak in time, {shed:.0%} refused"
    if odd:
        return failed(measured, f"calls failed otherwise than by a 429: status {odd[0]}", "please report it")
    if held < 0.3:
        return failed(measured, "an overloaded route hardly answers anything in time", "see docs/admission.md")
    if held < 0.9:
        return partial(measured, "under 90 %, in the first seconds after a start; is this machine busy?")
    return passed(measured)


async def refusals(bench: Bench) -> CheckOutcome:
    """Who is turned away is told so at once, and when to come again."""
    way = bench.subject.admitting_way()
    if way is None:
        return _NO_ADMISSION
    async with bench.gateway(_policy(bench, way)) as child:
        _prepared(bench, way)
        calls = await _load(child, way, {way.keys[0]: 3 * _CAPACITY_PER_S}, bench.count(2, 15))
    refused = [call for call in calls if call.status == 429]
    if not refused:
        return failed("0 refused", "nothing was turned away under three times the load", "see docs/admission.md")
    unsaid = sum(call.retry_after_s is None for call in refused)
    late = quantile((call.took_s for call in refused), 0.99)
    measured = f"{len(refused)} refused, p99 {1000 * late:.0f} ms"
    if unsaid:
        return failed(measured, "a 429 without Retry-After", "please report it")
    if quantile((call.took_s for call in refused), 0.5) > _LATE_S:
        return failed(measured, "most refusals come later than an answer would have to", "please report it")
    if late > 0.02:
        return partial(measured, "over 20 ms: some wait in line before they are turned away")
    return passed(measured)


async def flood(bench: Bench) -> CheckOutcome:
    """One tenant asks ten times as much as the others: they are answered as before."""
    way = bench.subject.admitting_way()
    if way is None:
        return _NO_ADMISSION
    # Fairness is between callers of one priority: those that differ are served in the order of theirs.
    same = [key for key in way.tenants() if key.priority == way.tenants()[-1].priority]
    if len(same) < 2:
        return skipped("this policy has no two tenants of one priority")
    greedy, modest = same[0], same[1]
    async with bench.gateway(_policy(bench, way)) as child:
        _prepared(bench, way)
        fair = 0.4 * _CAPACITY_PER_S
        calls = await _load(child, way, {greedy: 10 * fair, modest: fair}, bench.count(2, 15))
    served, greedily = (_share(calls, key) for key in (modest, greedy))
    measured = f"{served:.0%} of the modest one's answered"
    if served < 1.5 * greedily:
        return failed(measured, "a tenant that floods takes the others' share", "admission.fairness: {by: tenant}")
    return passed(measured) if served >= 0.95 else partial(measured, "under 95 %; is this machine busy?")


def _share(calls: list[_Call], key: Key) -> float:
    """The share of a key's calls after the beginning of the flood that were answered well."""
    own = [call for call in calls if call.key == key.name and call.sent_s > 0.5]
    return sum(call.is_good for call in own) / max(1, len(own))


CHECKS = (
    Check("21", "3x overload: goodput holds", overload, is_timed=True),
    Check("22", "who is turned away is told at once, and until when", refusals, is_timed=True),
    Check("23", "one tenant floods: the others keep their share", flood, is_timed=True),
)

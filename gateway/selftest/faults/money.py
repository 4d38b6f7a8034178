"""Faults 11 to 14: what calls cost is told once, the same whatever the way, everywhere alike, and within the budget."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

from gateway.selftest.answers import chat_pieces
from gateway.selftest.bench import Bench, at_once, chat
from gateway.selftest.check import Check
from gateway.selftest.client import Fields, ReceivedAnswer
from gateway.selftest.own_redis import own_redis
from gateway.selftest.run import CHAT, Child
from gateway.selftest.upstream import Lie, LyingUpstream
from gateway.selftest.verdict import CheckOutcome, failed, passed

_PRICE = {"input_per_1m": 2.5, "output_per_1m": 10}
_COST = Decimal("0.0000675")
"""Of a whole answer of the lying upstream, which counts 7 tokens of every prompt and 5 of its answer."""
_BUDGETED_CALLS = 40
_MAX_AT_ONCE = 16
_BUG = "report it: this is a bug of the gateway, not of your policy"

_Call = dict[str, Any]


async def store_away(bench: Bench) -> CheckOutcome:
    """The ledger's store takes nothing and the gateway is killed meanwhile: every answered call is there, once."""
    count = bench.count(30, 300)
    answers: list[ReceivedAnswer] = []
    async with bench.upstreams() as (upstream,):
        policy, store = _policy(bench, upstream)
        async with bench.gateway(policy, is_alone=True) as child:
            if not store.is_file():
                return failed("no ledger", "the gateway has made no store for its ledger", _BUG)
            with closing(sqlite3.connect(store, isolation_level=None)) as locked:
                locked.execute("BEGIN EXCLUSIVE")
                await at_once(_MAX_AT_ONCE, [_ask(child, answers, n, stream=n % 2 == 0) for n in range(count)])
                # What is in the access log is over, so it is in the journal.
                await child.wait_log(count=count, timeout_s=15)
                child.process.kill()
                await child.wait_exit()
        async with bench.gateway(policy, is_alone=True) as child:
            calls = await child.ledger(count)
    num_good = sum(answer.is_good for answer in answers)
    measured = f"{num_good} of {count} answered, {len(calls)} in the ledger"
    wrong = {call["request_id"] for call in calls if _dollars(call) != _COST}
    if num_good < count:
        return failed(measured, "calls fail while the ledger's store is away", _BUG)
    if len(calls) != count or {call["request_id"] for call in calls} != {str(n) for n in range(count)} or wrong:
        return failed(measured, f"calls are lost, doubled, or cost something else ({len(wrong)})", _BUG)
    return passed(measured)


async def budget_raced(bench: Bench) -> CheckOutcome:
    """Many at once at one budget, over two gateways where there is a Redis: used to its end, over by a call each."""
    async with AsyncExitStack() as stack:
        (upstream,) = await stack.enter_async_context(bench.upstreams())
        budget = {"name": "all", "per": "all", "usd": float(_BUDGETED_CALLS * _COST), "every": "total"}
        redis = await stack.enter_async_context(own_redis(bench.new_folder("redis")))
        children = []
        for _ in range(2 if redis is not None else 1):
            policy, _ = _policy(bench, upstream, budgets=[budget])
            if redis is not None:
                place = bench.new_folder("place") / "redis"
                place.write_text(redis, encoding="utf-8")
                place.chmod(0o600)
                policy["stores"] = {"redis": {"url": f"file:{place}"}}
            children.append(await stack.enter_async_context(bench.gateway(policy, is_alone=True)))
        answers: list[ReceivedAnswer] = []
        racing = [_ask(children[n % len(children)], answers, n, max_tokens=5) for n in range(3 * _BUDGETED_CALLS)]
        await at_once(_MAX_AT_ONCE, racing)
        # Beside others a call may not fit that fits alone: what is left is used one by one.
        for n in range(_BUDGETED_CALLS):
            await _ask(children[n % len(children)], answers, n, max_tokens=5)
        strange = [answer.status for answer in answers if answer.status not in (200, 429)]
        num_sent = upstream.num_requests
    most = _BUDGETED_CALLS + len(children)
    measured = f"{num_sent} calls sent, a budget of {_BUDGETED_CALLS}"
    if strange:
        return failed(measured, f"a client is told {strange[0]} where a budget is spent", _BUG)
    if num_sent > most:
        return failed(measured, f"spent by more than a call each of {len(children)} gateways", _BUG)
    if num_sent < _BUDGETED_CALLS:
        return failed(measured, "the budget is not used to its end", _BUG)
    return passed(measured, "" if redis is not None else "one gateway: two need a redis-server here, and its client")


async def same_cost(bench: Bench) -> CheckOutcome:
    """Whole, streamed, streamed without asking for usage, replayed, broken off: the price table says what it costs."""
    cut = Lie(pieces=chat_pieces(), stop_after=4, stop="reset")
    answers: list[ReceivedAnswer] = []
    async with bench.upstreams() as (upstream,):
        policy, _ = _policy(bench, upstream, cache={"scope": "global", "exact": {"ttl": "1h"}})
        async with bench.gateway(policy, is_alone=True) as child:
            await _ask(child, answers, "whole")
            await _ask(child, answers, "streamed", stream=True)
            await _ask(child, answers, "with-usage", stream=True, stream_options={"include_usage": True})
            await _ask(child, answers, "replayed", text="whole", stream=True)
            upstream.next(cut)
            await _ask(child, answers, "broken-off", stream=True)
            calls = {call["request_id"]: call for call in await child.ledger(5)}
    costs = {name: _dollars(call) for name, call in calls.items()}
    measured = ", ".join(f"{name} {cost}" for name, cost in sorted(costs.items())) or "no calls in the ledger"
    paid = [costs.get(name) for name in ("whole", "streamed", "with-usage")]
    replayed, broken = calls.get("replayed"), calls.get("broken-off")
    if paid != [_COST] * 3:
        return failed(measured, f"the same answer costs {_COST} whatever the way", _BUG)
    if replayed is None or costs["replayed"] != 0 or Decimal(replayed["saved_exact_usd"]) != _COST:
        return failed(measured, f"a replayed answer costs nothing and saves {_COST}", _BUG)
    if broken is None or not broken["estimated"] or not 0 < (costs["broken-off"] or 0) <= 2 * _COST:
        return failed(measured, "what an upstream did before its answer broke off is estimated, not free", _BUG)
    return passed(measured)


async def all_agree(bench: Bench) -> CheckOutcome:
    """Good, streamed, repeated, refused and broken calls: log, metrics, ledger and dashboard say the same of them."""
    count = bench.count(60, 600)
    answers: list[ReceivedAnswer] = []
    async with bench.upstreams() as (upstream,):
        policy, _ = _policy(bench, upstream, cache={"scope": "global", "exact": {"ttl": "1h"}})
        async with bench.gateway(policy, is_alone=True) as child:
            upstream.plan = _now_and_then(upstream)
            works = [_ask(child, answers, n, text=f"{n % (count // 2)}", stream=n % 3 > 0) for n in range(count)]
            await at_once(_MAX_AT_ONCE, works)
            calls = await child.ledger(count)
            seen = await child.ask("/dashboard/api/overview?range=24h")
            in_metrics = round(Decimal(await child.metric("slipstream_upstream_cost_usd_total")), 12)
            logged = len(child.log)
    money, totals = _overview(seen)
    ledger = sum((cost for call in calls if (cost := _dollars(call)) is not None), Decimal(0))
    shown = Decimal(money.get("spent") or 0)
    figures = f"{ledger} dollars in the ledger, {in_metrics} in metrics, {shown} on the dashboard"
    numbers = (len(calls), logged, totals.get("calls"))
    if numbers != (count, count, count):
        return failed(f"{count} calls: {numbers}", "ledger, log and dashboard count other calls than were made", _BUG)
    if not ledger == in_metrics == shown or not ledger:
        return failed(figures, "what was spent differs", _BUG)
    return passed(f"{count} calls, {ledger} dollars everywhere")


def _policy(
    bench: Bench, upstream: LyingUpstream, *, budgets: Sequence[_Call] = (), **route: Any
) -> tuple[_Call, Path]:
    """A policy with one priced backend and a ledger of its own, and where that ledger's store is."""
    store = bench.new_folder("ledger") / "ledger.sqlite3"
    backends = {"up": {"type": "openai", "base_url": upstream.url, "price": _PRICE}}
    routes = [
        {"name": "all", "match": {"models": ["*"]}, "backends": [{"ref": "up"}], "retry": {"attempts": 0}, **route}
    ]
    made = {"version": 1, "ledger": {"url": f"sqlite:///{store}"}, "backends": backends, "routes": routes}
    return {**made, **({"budgets": list(budgets)} if budgets else {})}, store


async def _ask(
    child: Child, answers: list[ReceivedAnswer], name: object, *, text: str = "", stream: bool = False, **more: object
) -> None:
    """One chat, known by its name in the ledger."""
    body = chat(text or str(name), "selftest", stream=stream, **more)
    headers: Fields = (("x-request-id", str(name)),)
    answers.append(await child.ask(CHAT, body, headers=headers))


def _now_and_then(upstream: LyingUpstream) -> Callable[[object], Lie | None]:
    """Of ten requests one is refused, and one stream breaks off."""

    def plan(request: object) -> Lie | None:
        del request
        place = upstream.num_requests % 10
        return Lie(status=400) if place == 3 else Lie(pieces=chat_pieces(), stop_after=3) if place == 7 else None

    return plan


def _overview(seen: ReceivedAnswer) -> tuple[_Call, _Call]:
    """Money and totals of the dashboard's first page; nothing where there is none."""
    said = seen.json()
    found = [said.get(name) if isinstance(said, dict) else None for name in ("money", "totals")]
    money, totals = [part if isinstance(part, dict) else {} for part in found]
    return money, totals


def _dollars(call: _Call) -> Decimal | None:
    return None if call["cost_usd"] is None else Decimal(call["cost_usd"])


CHECKS = (
    Check("11", "the store of spend is down: nothing is lost", store_away),
    Check("12", "replicas race one budget: overspend is bounded", budget_raced),
    Check("13", "streamed, buffered, cut: the same cost", same_cost),
    Check("14", "ledger, metrics, dashboard and log agree", all_agree),
)

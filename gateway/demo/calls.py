"""The calls of some weeks, as rows of a ledger: quiet nights, busy afternoons, and a week in which something happens.

On Tuesday a cheaper model takes part of a route. On Wednesday a provider fails for 40 minutes, and another one answers.
On Thursday somebody changes a prompt, and for 18 hours the provider's cache finds half of what it did. On Friday an
agent runs in a circle until its budget stops it. On Saturday the batches run, at half the price.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import NamedTuple, TypeVar

from gateway.demo.cast import AGENTS, FLASH, MINI, MODELS, OWN, SONNET, TENANTS, TWIN_OF_GPU, CallingTenant, PricedModel
from gateway.ledger.row import SAVINGS, Row

_TUESDAY, _WEDNESDAY, _THURSDAY, _FRIDAY, _SATURDAY = range(1, 6)
_BUSIEST_HOUR = 14.0
_BY_CACHES = {"exact": 0.17, "joined": 0.02, "semantic": 0.06}
"""Shares of the calls that a cache answers."""
_AGENT_USD = 25
_Thing = TypeVar("_Thing", PricedModel, CallingTenant)


class Moment(NamedTuple):
    """When a call comes: seconds since the Unix epoch, and what that is on a calendar."""

    at: float
    weekday: int
    hour: float
    is_last_week: bool


def calls(until: float, num_days: int, calls_a_day: int, random: Random) -> Iterator[Row]:
    """Those of so many days before that moment, in order of time; the same for the same random numbers."""
    begin = until - num_days * 86400
    spent_by_agent = 0
    for n, at in enumerate(_moments(begin, until, num_days * calls_a_day, random), start=1):
        day = datetime.fromtimestamp(at, UTC)
        moment = Moment(at, day.weekday(), day.hour + day.minute / 60, at > until - 7 * 86400)
        is_agent = _agent_runs(moment) and spent_by_agent < _AGENT_USD * 10**12 and random.random() < 0.7
        row = _agent_call(n, moment, random) if is_agent else _call(n, moment, random)
        if is_agent:
            spent_by_agent += row.cost or 0
        yield row


def is_provider_down(at: float) -> bool:
    """Whether it fails at that moment, in seconds since the Unix epoch; of the last week alone it is told."""
    day = datetime.fromtimestamp(at, UTC)
    return day.weekday() == _WEDNESDAY and 10.0 <= day.hour + day.minute / 60 < 10.67


def _moments(begin: float, until: float, number: int, random: Random) -> list[float]:
    """More of them in the afternoon than at night, and on weekdays than on Sundays."""
    found: list[float] = []
    while len(found) < number:
        at = begin + random.random() * (until - begin)
        day = datetime.fromtimestamp(at, UTC)
        hour = day.hour + day.minute / 60
        busy = 0.12 + 0.88 * max(0.0, math.cos((hour - _BUSIEST_HOUR) / 24 * 2 * math.pi)) ** 1.5
        if random.random() < busy * (0.35 if day.weekday() >= _SATURDAY else 1.0):
            found.append(at)
    return sorted(found)


def _call(n: int, moment: Moment, random: Random) -> Row:
    tenant = _one(TENANTS, random)
    asked = _one(MODELS, random)
    row = _row(n, moment, tenant, asked, random)
    if asked.answer_tokens == 0:
        row.operation = "embeddings"
        row.stream = False
    is_batch = moment.weekday == _SATURDAY and tenant.name == "research"
    cached = asked.cached_share
    if asked is SONNET and moment.is_last_week and _is_prompt_changed(moment):
        cached /= 2
    row.cached_tokens = int(row.input_tokens * cached * random.uniform(0.8, 1.1))
    outcome = _cache(random) if asked.answer_tokens else ""
    if outcome and outcome != "miss":
        row.cache = {"exact": "hit"}.get(outcome, outcome)
        row.backend = ""
        _answered_by_cache(row, asked, outcome, random)
        return row
    row.cache = outcome
    served = asked
    if asked is SONNET and moment.is_last_week and moment.weekday >= _TUESDAY and random.random() < 0.25:
        served = FLASH
    if moment.is_last_week and is_provider_down(moment.at) and asked is MINI:
        if random.random() < 0.35:
            _fail(row)
            return row
        served = FLASH._replace(backend="anthropic")
    row.backend = TWIN_OF_GPU if asked is OWN and n % 2 else served.backend
    row.served = served.name
    _timed(row, served, random)
    _priced(row, asked, served, is_batch=is_batch, extra=random.random() < 0.03)
    return row


def _agent_runs(moment: Moment) -> bool:
    return moment.is_last_week and moment.weekday == _FRIDAY and 15.0 <= moment.hour < 20.0


def _agent_call(n: int, moment: Moment, random: Random) -> Row:
    """One step of a run that gets nowhere; its prompts grow."""
    row = _row(n, moment, AGENTS, SONNET, random)
    row.key, row.session, row.agent = "agents-ci", "run-4711", "codex"
    row.input_tokens = random.randrange(20_000, 60_000)
    row.cached_tokens = 0
    row.backend = SONNET.backend
    row.served = SONNET.name
    row.cache = "miss"
    _timed(row, SONNET, random)
    _priced(row, SONNET, SONNET, is_batch=False, extra=False)
    return row


def _row(n: int, moment: Moment, tenant: CallingTenant, model: PricedModel, random: Random) -> Row:
    row = Row(n=n, at_us=int(moment.at * 1e6), request_id=f"req_made_up_{n:06d}")
    row.tenant, row.key = tenant.name, _pick(tenant.keys, random)
    row.team = f"{tenant.name}-team"
    row.route, row.operation, row.model = model.route, "chat", model.name
    row.user = f"user-{random.randrange(400)}"
    row.stream = True
    row.status, row.end = 200, "clean"
    row.agent = random.choice(("openai-python", "openai-node", "curl"))
    row.priority = tenant.priority
    row.input_tokens = int(random.lognormvariate(math.log(model.prompt_tokens), 0.7)) + 1
    row.output_tokens = int(random.lognormvariate(math.log(model.answer_tokens), 0.8)) + 1 if model.answer_tokens else 0
    return row


def _fail(row: Row) -> None:
    row.backend, row.status, row.end = MINI.backend, 502, "error"
    row.error, row.fault, row.output_tokens, row.cached_tokens = "upstream_error", "upstream", 0, 0
    row.cost = row.list_cost = 0
    _save(row, {})
    row.total_us = 900_000


def _answered_by_cache(row: Row, asked: PricedModel, outcome: str, random: Random) -> None:
    row.cached_tokens = 0
    _timed(row, asked._replace(first_token_ms=3), random)
    row.cost = 0
    if asked.input_price is None:
        return
    row.list_cost = row.input_tokens * asked.input_price + row.output_tokens * asked.output_price
    _save(row, {f"saved_{outcome}": row.list_cost})


def _priced(row: Row, asked: PricedModel, served: PricedModel, *, is_batch: bool, extra: bool) -> None:
    """What it cost, and what of the list price was saved by what: the parts sum to the difference."""
    if asked.input_price is None or served.input_price is None:
        return
    row.price = f"{served.backend}:{served.name}"
    listed = row.list_cost = row.input_tokens * asked.input_price + row.output_tokens * asked.output_price
    whole = row.input_tokens * served.input_price + row.output_tokens * served.output_price
    kept = row.cached_tokens * (served.input_price - served.input_price // 10)
    halved = (whole - kept) // 2 if is_batch else 0
    checks = whole // 10 if extra else 0
    row.cost = whole - kept - halved + checks
    by_provider = "saved_prompt" if served is SONNET else "saved_provider"
    parts = {"saved_cheaper": listed - whole, by_provider: kept, "saved_batch": halved, "saved_extra": -checks}
    _save(row, parts)


def _save(row: Row, parts: dict[str, int]) -> None:
    for name in SAVINGS:
        setattr(row, name, parts.get(name, 0))


def _timed(row: Row, model: PricedModel, random: Random) -> None:
    first_us = int(random.lognormvariate(math.log(model.first_token_ms or 60), 0.45) * 1000)
    per_token_us = int(random.lognormvariate(math.log(14_000), 0.25))
    row.total_us = first_us + row.output_tokens * per_token_us
    if row.backend:
        row.sent_us, row.attempts = int(random.uniform(300, 900)), 1
    if row.backend in (OWN.backend, TWIN_OF_GPU):
        row.drafted_tokens, row.accepted_tokens = row.output_tokens, row.output_tokens * 7 // 10
    if row.stream:
        row.ttft_us, row.tpot_us = first_us, per_token_us
        row.in_slo = first_us < 1_500_000


def _is_prompt_changed(moment: Moment) -> bool:
    return (moment.weekday == _THURSDAY and moment.hour >= 9) or (moment.weekday == _FRIDAY and moment.hour < 3)


def _cache(random: Random) -> str:
    drawn = random.random()
    for outcome, share in _BY_CACHES.items():
        if drawn < share:
            return outcome
        drawn -= share
    return "miss" if drawn < 0.6 else ""


def _one(things: tuple[_Thing, ...], random: Random) -> _Thing:
    return random.choices(things, [thing.share for thing in things])[0]


def _pick(keys: tuple[tuple[str, float], ...], random: Random) -> str:
    return random.choices([name for name, _ in keys], [share for _, share in keys])[0]

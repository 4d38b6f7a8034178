"""Compares what clients, upstream, ledger, metrics and dashboard say of the same calls, to the last pico-dollar.

What broke off in the killed worker is nobody's drift: the questions of these calls are left out, and counted. What the
killed worker had not yet put into the metrics is in the ledger alone; it can only be what it did in its last second.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import namedtuple_row

from gateway.ledger.amounts import usd_text
from gateway.ledger.row import SAVINGS
from tests.benchmarks.faults.drift_upstream import Used
from tests.support.faults import Figure, at_most, none
from tests.support.gateway import Metrics

_COLUMNS = (
    *("worker", "n", "part", "request_id", "backend", "status", '"end"', "at_us + total_us AS ended_us"),
    *("input_tokens", "cached_tokens", "output_tokens", "cost", *SAVINGS),
)
_KEPT_BACK_US = 1_000_000
"""A worker brings what upstreams cost up to date ten times a second; on a busy machine less often."""


class Told(NamedTuple):
    """What a client asked and was told: the status, and the answer's tokens where it was no stream."""

    question: str
    status: int
    output_tokens: int | None


def compared(
    url: str,
    told: Mapping[str, Told],
    broken: Collection[str],
    upstream: Mapping[str, Used],
    metrics: Metrics,
    overviews: Sequence[Mapping[str, Any]],
    killed_at_us: int,
) -> list[Figure]:
    """The figures. `told` by request id; `broken`: the questions of calls that were not answered whole; `overviews`:
    what the dashboard says of spans in which all of it was.
    """
    with psycopg.connect(url, row_factory=namedtuple_row) as connection:
        rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM calls").fetchall()
    calls = [row for row in rows if row.part == 0]
    print(f"{len(told)} answered, {len(broken)} broken off, {len(calls)} calls in the ledger, {len(rows)} rows")
    return [
        *_against_clients(calls, told, len(broken)),
        *_against_upstream(rows, told, broken, upstream),
        *_against_metrics(rows, metrics, killed_at_us),
        *_against_dashboard(rows, overviews),
    ]


def _against_clients(calls: list[Any], told: Mapping[str, Told], num_broken: int) -> list[Figure]:
    by_id = {row.request_id: row for row in calls}
    times = Counter(row.request_id for row in calls)
    pairs = [(by_id.get(request_id), said) for request_id, said in told.items()]
    wrong = [
        row
        for row, said in pairs
        if row is not None and (row.status != said.status or said.output_tokens not in (None, row.output_tokens))
    ]
    return [
        none("calls answered whole without a row", sum(row is None for row, _ in pairs)),
        none("calls with more than one row", sum(number > 1 for number in times.values())),
        none("rows that say something else than the answer", len(wrong)),
        at_most("rows of calls that broke off", num_broken, len(times.keys() - told.keys()), ""),
    ]


def _against_upstream(
    rows: list[Any], told: Mapping[str, Told], broken: Collection[str], upstream: Mapping[str, Used]
) -> list[Figure]:
    booked: defaultdict[str, Used] = defaultdict(Used)
    for row in rows:
        # What a cache gave has the tokens of an answer that is in another row.
        if row.backend and row.request_id in told:
            question = told[row.request_id].question
            booked[question] = booked[question].plus(_used(row))
    questions = {said.question for said in told.values()} - set(broken)
    apart = [question for question in questions if booked[question] != upstream.get(question, Used())]
    ours, theirs = Used(), Used()
    for question in questions:
        ours, theirs = ours.plus(booked[question]), theirs.plus(upstream.get(question, Used()))
    print(f"{len(questions)} questions: ledger {_said(ours)}; upstream {_said(theirs)}")
    return [
        none("questions of which ledger and upstream differ", len(apart)),
        none("their drift, pico-dollars", ours.cost - theirs.cost),
        none("their drift, tokens", _distance(ours, theirs)),
    ]


def _against_metrics(rows: list[Any], metrics: Metrics, killed_at_us: int) -> list[Figure]:
    asked = [row for row in rows if row.backend]
    ledger = _sum(asked)
    tokens = "slipstream_upstream_tokens_total"
    counted = Used(
        *(int(metrics.value(tokens, kind=kind)) for kind in ("prompt", "cached", "completion")),
        round(metrics.value("slipstream_upstream_cost_usd_total") * 1e12),
    )
    # Whether or not it had calls under way, none of its calls ended later, and some of every other worker's did.
    ended_us: dict[int, int] = {}
    for row in rows:
        ended_us[row.worker] = max(ended_us.get(row.worker, 0), row.ended_us)
    killed = {worker for worker, at_us in ended_us.items() if at_us <= killed_at_us}
    last = _sum([row for row in asked if row.worker in killed and row.ended_us > killed_at_us - _KEPT_BACK_US])
    missing = Used(*(ours - theirs for ours, theirs in zip(ledger, counted, strict=True)))
    print(f"ledger {_said(ledger)}; metrics {_said(counted)}")
    print(f"{len(killed)} killed, its last second {_said(last)}; in the ledger and not in the metrics {_said(missing)}")
    beyond = sum(max(0, -each) + max(0, each - most) for each, most in zip(missing, last, strict=True))
    return [
        none("drift of metrics beyond the killed worker's last second", beyond),
        none("drift that living workers see, US dollars", int(metrics.value("slipstream_ledger_drift_usd") != 0)),
        none("rows dropped", int(metrics.value("slipstream_ledger_dropped_total"))),
    ]


def _against_dashboard(rows: list[Any], overviews: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Its sums, those of its steps and of its lines by model: what was spent, what was saved by what, calls."""
    cost = sum(row.cost or 0 for row in rows)
    saved = {name: sum(getattr(row, name) or 0 for row in rows) for name in SAVINGS}
    calls = sum(row.part == 0 for row in rows)
    apart = 0
    for overview in overviews:
        money = overview["money"]
        steps = sum(map(_pico, filter(None, overview["cost"])))
        by_model = sum(_pico(line["cost"]) for line in money["by"])
        apart += abs(_pico(money["spent"]) - cost) + abs(steps - cost) + abs(by_model - cost)
        apart += sum(abs(_pico(money["causes"][name.removeprefix("saved_")]) - saved[name]) for name in SAVINGS)
        apart += abs(_pico(money["saved"]) - sum(saved.values())) + abs(overview["totals"]["calls"] - calls)
        shown = f"{overview['totals']['calls']} calls, {money['spent']} USD, {money['saved']} saved"
        print(f"dashboard, {overview['range']}: {shown}")
    return [
        none("differences between dashboard and ledger, pico-dollars and calls", apart),
    ]


def _sum(rows: list[Any]) -> Used:
    total = Used()
    for row in rows:
        total = total.plus(_used(row))
    return total


def _used(row: Any) -> Used:
    return Used(row.input_tokens, row.cached_tokens, row.output_tokens, row.cost or 0)


def _pico(usd: str) -> int:
    return int(Decimal(usd) * 10**12)


def _said(used: Used) -> str:
    return f"{used.prompt} + {used.completion} tokens ({used.cached} cached), {usd_text(used.cost)} USD"


def _distance(ours: Used, theirs: Used) -> int:
    return sum(abs(mine - others) for mine, others in zip(ours[:3], theirs[:3], strict=True))

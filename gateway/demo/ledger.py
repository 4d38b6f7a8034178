"""Fills a ledger with made-up calls, and makes a policy that goes with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from gateway.demo.calls import calls, is_provider_down
from gateway.demo.cast import MINI, MODELS, OWN, RESEARCH
from gateway.ledger.days import Days
from gateway.ledger.row import Row, stored
from gateway.ledger.samples import GaugeSample
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.ledger.tables import MADE_UP
from gateway.sql.sqlite import SqliteDatabase

NUM_DAYS = 36
"""Five weeks, so that a month can be foretold, and a day."""
CALLS_A_DAY = 900
_AT_ONCE = 3000
_WORKER = 1
_USED_BY_RESEARCH = 0.92
_OF_OTHERS_USD = 2000
_SAMPLED_MINUTES = 7 * 24 * 60
_KNOWN_WRONG, _UNSURE = 0.006, 0.034
"""Wrong answers per look-up at most: in the end, and how much more in the beginning."""


def fill(
    path: Path, until: float, seed: int, on_rows: Callable[[int], None], *, calls_a_day: int = CALLS_A_DAY
) -> float:
    """Make a ledger of the weeks before that moment, in UTC. `on_rows` is told how many more are in it.

    Returns what `research` has spent of the month by then, in dollars.
    """
    database = SqliteDatabase(path, LEDGER)
    store = LedgerStore(database, "UTC")
    store.open()
    with database.writing() as transaction:
        transaction.execute("INSERT INTO settings VALUES (?, '1') ON CONFLICT DO NOTHING", (MADE_UP,))
    days = Days("UTC")
    spent: Counter[str] = Counter()
    month = datetime.fromtimestamp(until, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
    for rows in _batches(calls(until, NUM_DAYS, calls_a_day, Random(seed))):
        for row in rows:
            if row.at_us >= month * 1e6:
                spent[row.tenant] += row.cost or 0
        store.insert([stored(msgspec.structs.astuple(row), _WORKER, days.of(row.at_us)) for row in rows])
        while store.roll_up(_AT_ONCE):
            pass
        on_rows(len(rows))
    while store.count_latencies(20_000):
        pass
    store.keep_samples(_samples(until))
    store.close()
    return spent[RESEARCH.name] / 10**12


def _samples(until: float) -> list[GaugeSample]:
    """On Wednesday a breaker is open while its provider fails, but for when it tries again. The semantic cache grows
    surer of itself with all that it learns in a week.
    """
    minutes = range(int(until // 60) - _SAMPLED_MINUTES, int(until // 60))
    failing = (minute for minute in minutes if is_provider_down(minute * 60) and minute % 6)
    out = [GaugeSample(minute, "out", MINI.backend, 1) for minute in failing]
    surer = (
        GaugeSample(minute, "wrong_at_most", route, _KNOWN_WRONG + _UNSURE * 0.5 ** (80 * n / len(minutes)))
        for n, minute in enumerate(minutes[::10])
        for route in (MINI.route, OWN.route)
    )
    return [*out, *surer]


def policy(ledger: Path, spent_by_research: float) -> dict[str, Any]:
    """Backends that answer by themselves, named as in the ledger; `research` is near the end of its budget."""
    routes: dict[str, dict[str, set[str]]] = {}
    for model in MODELS:
        route = routes.setdefault(model.route, {"models": set(), "backends": set()})
        route["models"].add(model.name)
        route["backends"].add(model.backend)
    names = sorted({model.backend for model in MODELS})
    research = round(max(spent_by_research / _USED_BY_RESEARCH, 0.01), 2)
    of_research = {"name": "research", "per": "tenant", "tenants": [RESEARCH.name], "usd": research, "every": "month"}
    return {
        "version": 1,
        "ledger": {"url": f"sqlite:///{ledger}", "keep": "90d"},
        "backends": {name: {"type": "scripted", "price": {"input_per_1m": 1, "output_per_1m": 4}} for name in names},
        "routes": [
            {
                "name": name,
                "match": {"models": sorted(route["models"])},
                "backends": [{"ref": backend} for backend in sorted(route["backends"])],
            }
            for name, route in routes.items()
        ],
        "budgets": [
            {**of_research, "on_exceed": "warn"},
            {"name": "everybody", "per": "all", "usd": _OF_OTHERS_USD, "every": "month", "on_exceed": "warn"},
        ],
    }


def _batches(rows: Iterator[Row]) -> Iterator[Sequence[Row]]:
    while batch := list(islice(rows, _AT_ONCE)):
        yield batch

"""The made-up ledger adds up like a real one, has its stories, and is gone when the demo ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import httpx

from gateway.dashboard.access import Scope
from gateway.dashboard.queries.asked import asked
from gateway.dashboard.queries.book import Book, Memory
from gateway.dashboard.queries.overview import overview
from gateway.demo.calls import calls
from gateway.demo.ledger import fill
from gateway.ledger.row import SAVINGS
from gateway.ledger.store import LEDGER
from gateway.ledger.tables import MADE_UP, read_settings
from gateway.sql.sqlite import SqliteDatabase

SUNDAY = datetime(2026, 11, 22, 23, tzinfo=UTC).timestamp()


def test_rows_add_up_and_have_their_stories() -> None:
    """What was saved is what the list says less what was paid; each day of the last week has what is told of it."""
    rows = list(calls(SUNDAY, 14, 900, Random(3)))
    days = [datetime.fromtimestamp(row.at_us / 1e6, UTC) for row in rows]

    assert [row.at_us for row in rows] == sorted(row.at_us for row in rows)
    for row in rows:
        if row.cost is None:
            assert row.model == "qwen3-coder-next"
        elif row.list_cost is not None:
            assert row.list_cost - row.cost == sum(getattr(row, name) or 0 for name in SAVINGS)
    failed = {day.date().isoformat() for day, row in zip(days, rows, strict=True) if row.status == 502}
    assert failed == {"2026-11-18"}
    loop = [row for row in rows if row.session == "run-4711"]
    assert 24e12 < sum(row.cost or 0 for row in loop) < 26e12
    cached: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for day, row in zip(days, rows, strict=True):
        if row.served == "claude-sonnet-4-5" and row.session == "":
            cached[day.date().isoformat()] += row.cached_tokens
            whole[day.date().isoformat()] += row.input_tokens
    assert cached["2026-11-19"] / whole["2026-11-19"] < 0.75 * cached["2026-11-17"] / whole["2026-11-17"]
    assert any(row.saved_batch for row in rows)


def test_same_seed_same_weeks(tmp_path: Path) -> None:
    """To the last amount; another seed makes others. The ledger says that it is made up."""
    spent = []
    for number, seed in enumerate((1, 1, 2)):
        path = tmp_path / f"{number}.sqlite3"
        told: list[int] = []
        fill(path, SUNDAY, seed, told.append, calls_a_day=20)
        database = SqliteDatabase(path, LEDGER)
        with database.reading() as transaction:
            book = Book(transaction, Memory(), SUNDAY, "UTC")
            spent.append(overview(book, asked({"range": "30d"}, Scope(None), SUNDAY, "UTC"))["money"])
            assert MADE_UP in read_settings(transaction)
        database.close()
        assert sum(told) == 36 * 20

    assert spent[0] == spent[1] != spent[2]
    assert spent[0]["month"]["likely"] is not None


def test_demo_serves_a_dashboard_until_it_is_told_to_end(tmp_path: Path) -> None:
    """And leaves nothing behind."""
    command = [str(Path(sys.executable).with_name("slipstream")), "demo", "--port", "0"]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environ)
    try:
        assert process.stderr is not None
        lines = iter(process.stderr)
        found = next(filter(None, (re.search(r"Dashboard: (http://\S+/)dashboard", line) for line in lines)))
        me = httpx.get(f"{found[1]}dashboard/api/me").json()
        budgets = httpx.get(f"{found[1]}dashboard/api/budgets").json()["rows"]
        assert list(tmp_path.iterdir())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()

    assert me["is_made_up"]
    assert {budget["who"] for budget in budgets if 0.9 < budget["share"] < 0.94} == {"research"}
    assert not list(tmp_path.iterdir())

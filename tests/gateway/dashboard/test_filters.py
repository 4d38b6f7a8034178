"""What people look calls up by: found are those that a plain loop finds, and nothing in a filter is ever SQL."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import InvalidRequest, UnknownPath
from gateway.dashboard.access import Scope
from gateway.dashboard.filters import condition_of
from gateway.dashboard.queries.calls import failures, one, page
from gateway.ledger.days import Days
from gateway.ledger.row import Row, stored
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.sql.sqlite import SqliteDatabase
from tests.gateway.ledger.conftest import Connect
from tests.support.ledger import sample_row

ALL = Scope(None)


def filled(database: object, number: int, change: Callable[[Row], None] = lambda row: None) -> list[Row]:
    store = LedgerStore(database, "UTC")  # type: ignore[arg-type]
    store.open()
    rows = [sample_row(n) for n in range(1, number + 1)]
    for row in rows:
        row.fault = "upstream" if row.status >= 400 else ""
        change(row)
    store.insert([stored(msgspec.structs.astuple(row), 1, Days("UTC").of(row.at_us)) for row in rows])
    return rows


@pytest.mark.parametrize(
    ("text", "is_wanted"),
    [
        ("", lambda row: True),
        ("model:model-1 tenant:tenant-2", lambda row: row.model == "model-1" and row.tenant == "tenant-2"),
        ("status:5xx", lambda row: row.status == 500),
        ("-status:5xx -tenant:tenant-1", lambda row: row.status != 500 and row.tenant != "tenant-1"),
        ("cost:>0.00005", lambda row: row.cost is not None and row.cost > 50_000_000),
        ("-cost:>0.00005", lambda row: not (row.cost is not None and row.cost > 50_000_000)),
        ("ms:>=500.5 stream:yes", lambda row: row.total_us >= 500_500 and row.stream),
        ("key:key-1*", lambda row: row.key.startswith("key-1")),
        ("failed:yes", lambda row: row.status == 500),
        ("req_00000000000a", lambda row: row.request_id == "req_00000000000a"),
        ('session:"session-4"', lambda row: row.session == "session-4"),
    ],
)
def test_filters_find_what_they_say(connect: Connect, text: str, is_wanted: Callable[[Row], bool]) -> None:
    """The newest first, page by page."""
    rows = filled(database := connect(), 250)
    found: list[str] = []
    before = None
    with database.reading() as transaction:
        while True:
            answer = page(transaction, ALL, condition_of(text), before=before)
            found += [row["request_id"] for row in answer["rows"]]
            before = answer["next"]
            if before is None:
                break

    assert found == [row.request_id for row in reversed(rows) if is_wanted(row)]


@given(
    text=st.text(max_size=60) | st.sampled_from(["model:' OR 1=1 --", "cost:>1e999", "status:9xx", 'a:"', "cost:NaN"])
)
def test_no_text_is_sql(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """It is understood or refused."""
    database = SqliteDatabase(Path(tmp_path_factory.mktemp("l"), "ledger.sqlite3"), LEDGER)
    filled(database, 3)
    try:
        wanted = condition_of(text)
    except InvalidRequest:
        database.close()
        return
    with database.reading() as transaction:
        assert len(page(transaction, ALL, wanted)["rows"]) <= 3
    database.close()


def test_a_tenant_sees_its_own_calls_alone(connect: Connect) -> None:
    """In the list, in what failed, and one by one, whatever its filter says."""
    filled(database := connect(), 60)
    own = Scope("tenant-1")
    with database.reading() as transaction:
        listed = page(transaction, own, condition_of("-tenant:tenant-1"))["rows"]
        mine = page(transaction, own, condition_of(""))["rows"]
        failed = failures(transaction, own, 0)["rows"]
        foreign = page(transaction, Scope("tenant-2"), condition_of(""))["rows"][0]

        assert listed == []
        assert {row["tenant"] for row in mine} == {"tenant-1"}
        assert sum(row["count"] for row in failed) == sum(1 for row in mine if row["fault"])
        assert one(transaction, own, mine[0]["seq"])["call"]["tenant"] == "tenant-1"
        with pytest.raises(UnknownPath):
            one(transaction, own, foreign["seq"])


def test_one_call_has_all_its_charges(connect: Connect) -> None:
    """Their sum is what it cost; where one is unknown, so is the sum."""
    store = LedgerStore(database := connect(), "UTC")
    store.open()
    rows = [sample_row(5), sample_row(5, part=1), sample_row(11)]
    store.insert([stored(msgspec.structs.astuple(row), 1, 20261101) for row in rows])
    with database.reading() as transaction:
        calls = {row["request_id"]: row["seq"] for row in page(transaction, ALL, condition_of(""))["rows"]}
        five, eleven = (one(transaction, ALL, calls[row.request_id]) for row in (rows[0], rows[2]))

    assert len(five["parts"]) == 2
    assert Decimal(five["cost"]) == 2 * Decimal(rows[0].cost or 0) / 10**12
    assert eleven["cost"] is None

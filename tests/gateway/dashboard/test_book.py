"""What is kept of steps that are over is what the ledger would say, whatever comes late, and nothing is read twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pytest

from gateway.dashboard.access import Scope
from gateway.dashboard.queries.asked import asked
from gateway.dashboard.queries.backends import backends
from gateway.dashboard.queries.book import Book, Memory
from gateway.dashboard.queries.caches import caches
from gateway.dashboard.queries.overview import overview
from gateway.dashboard.ranges import RANGES, RangeName
from gateway.ledger.days import Days
from gateway.ledger.row import Row, stored
from gateway.ledger.store import LedgerStore
from gateway.sql.database import Database
from tests.gateway.ledger.conftest import Connect
from tests.support.ledger import sample_row

ZONE = "Europe/Vienna"
# Ten minutes before the clocks change, so the steps go over that too.
START_S = datetime(2026, 10, 25, 0, 50, tzinfo=UTC).timestamp()


def pages(
    database: Database, memory: Memory, now_s: float, name: RangeName, by: str, tenant: str | None
) -> list[object]:
    """All that is asked of sums."""
    about = asked({"range": name, "by": by}, Scope(tenant), now_s, ZONE)
    with database.reading() as transaction:
        book = Book(transaction, memory, now_s, ZONE)
        return [overview(book, about), backends(book, about), caches(book, about)]


class Filled:
    """A ledger whose rows come bit by bit."""

    def __init__(self, connect: Connect) -> None:
        self.store = LedgerStore(connect(), ZONE)
        self.store.open()
        self._days = Days(ZONE)
        self._n = 0

    def add(self, moments: Sequence[float]) -> None:
        """Calls that began then."""
        rows: list[Row] = []
        for moment in moments:
            self._n += 1
            rows.append(sample_row(self._n, at_us=int(moment * 1e6)))
        self.store.insert([stored(msgspec.structs.astuple(row), 1, self._days.of(row.at_us)) for row in rows])


@pytest.mark.parametrize("seed", range(2))
def test_answers_are_those_of_a_ledger_that_is_read_whole(connect: Connect, seed: int) -> None:
    """Over hours in which rows come at once, late, from a clock that is ahead, and are added to the sums or not yet."""
    random_ = random.Random(seed)
    ledger, memory, database = Filled(connect), Memory(), connect()
    ledger.add([START_S - random_.random() ** 3 * 50 * 86400 for _ in range(400)])
    now_s = START_S
    for _ in range(15):
        now_s += random_.choice((5, 61, 900, 4000))
        late_s = random_.choice((1, 1, 90, 5000, 90_000, -70))
        ledger.add([now_s - late_s - random_.random() * 20 for _ in range(random_.randrange(1, 4))])
        if random_.random() < 0.6:
            ledger.store.roll_up(300)
            ledger.store.count_latencies(300)
        asked_for = random_.choice(RANGES), random_.choice(("model", "key")), random_.choice((None, "tenant-2"))
        assert pages(database, memory, now_s, *asked_for) == pages(database, Memory(), now_s, *asked_for), asked_for


@pytest.mark.parametrize(("name", "table"), [("24h", "by_hour"), ("7d", "by_day"), ("30d", "by_day")])
def test_a_step_that_is_over_is_read_once(connect: Connect, name: RangeName, table: str) -> None:
    """Seen by sums that somebody tears down behind its back: they are missed when a row comes late, and not before."""
    ledger, memory, database = Filled(connect), Memory(), connect()
    ledger.add([START_S - 3600 * back for back in range(1, 20)])
    while ledger.store.roll_up(300):
        pass
    before = pages(database, memory, START_S, name, "model", None)
    with database.writing() as transaction:
        transaction.execute(f"DELETE FROM {table}")
    ledger.add([START_S])
    now = pages(database, memory, START_S, name, "model", None)[0]
    assert isinstance(now, dict)
    assert isinstance(before[0], dict)
    # Sunday has begun in Vienna, so calls of the last hours are of the step that goes on, where steps are days.
    gone = 2 if table == "by_day" else 0
    assert now["totals"]["calls"] == before[0]["totals"]["calls"] + 1 - gone

    ledger.add([START_S - 86400 - 7200 if table == "by_day" else START_S - 7200])
    late = pages(database, memory, START_S, name, "model", None)[0]
    assert isinstance(late, dict)
    assert late["totals"]["calls"] == 2


def test_another_ledger_in_its_place_is_another_one(connect: Connect) -> None:
    """As many rows as before, and nothing of theirs."""
    memory = Memory()
    ledger, database = Filled(connect), connect()
    ledger.add([START_S - 86400] * 5)
    first = pages(database, memory, START_S, "7d", "model", None)[0]
    with database.writing() as transaction:
        transaction.execute("DELETE FROM calls")
        transaction.execute("DELETE FROM settings WHERE name = 'session_secret'")
    ledger.store.open()
    second = pages(database, memory, START_S, "7d", "model", None)[0]

    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert (first["totals"]["calls"], second["totals"]["calls"]) == (5, 0)


def test_what_is_kept_has_an_end(connect: Connect) -> None:
    """However many keys there are, and however many pages are looked at."""
    ledger, memory, database = Filled(connect), Memory(), connect()
    rows = []
    days = Days(ZONE)
    for n in range(1, 6001):
        row = sample_row(n, at_us=int((START_S - 86400 - n) * 1e6))
        row.key = f"key-{n}"
        rows.append(stored(msgspec.structs.astuple(row), 1, days.of(row.at_us)))
    ledger.store.insert(rows)
    for tenant in (None, *(f"tenant-{number}" for number in range(5))):
        found = pages(database, memory, START_S, "30d", "key", tenant)[0]
        assert isinstance(found, dict)
        assert len(found["money"]["by"]) == 51
    assert memory.num_cells <= 200_000

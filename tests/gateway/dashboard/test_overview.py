"""The figures of the first page are the ledger's own, to the last decimal, for everybody and for one tenant."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.access import Scope
from gateway.dashboard.queries.asked import BY, asked
from gateway.dashboard.queries.backends import backends
from gateway.dashboard.queries.book import Book, Memory
from gateway.dashboard.queries.caches import caches
from gateway.dashboard.queries.happened import happened
from gateway.dashboard.queries.overview import overview
from gateway.dashboard.queries.service import service
from gateway.dashboard.ranges import RANGES, RangeName, range_of
from gateway.ledger.days import Days, day_number
from gateway.ledger.row import SAVINGS, Row, stored
from gateway.ledger.samples import GaugeSample
from gateway.ledger.store import LedgerStore
from gateway.ledger.sums import Within
from gateway.revisions import Revision, Revisions
from tests.gateway.ledger.conftest import Connect
from tests.support.ledger import sample_row

ZONE = "Europe/Vienna"
NOW_S = datetime(2026, 11, 15, 15, 40, tzinfo=UTC).timestamp()


def rows_of_weeks(number: int) -> list[Row]:
    random_ = random.Random(7)
    rows = []
    for n in range(number):
        # Some of them in the last hour.
        span_s = 40 * 86400 if n % 8 else 3600
        row = sample_row(n, at_us=int(NOW_S * 1e6) - random_.randrange(span_s * 10**6))
        row.cache = random_.choice(("hit", "joined", "semantic", "miss", "", "bypass"))
        row.fault = random_.choice(("", "", "", "upstream", "gateway", "client"))
        row.priority = random_.choice(("high", "normal", "low"))
        row.agent = random_.choice(("curl", "codex", "openai-python"))
        rows.append(row)
    return rows


def filled(connect: Connect, rows: list[Row], *, rolled_up: int) -> LedgerStore:
    """So many of the rows are in the sums."""
    store = LedgerStore(connect(), ZONE)
    store.open()
    days = Days(ZONE)
    store.insert([stored(msgspec.structs.astuple(row), 1, days.of(row.at_us)) for row in rows])
    store.roll_up(rolled_up)
    store.count_latencies(rolled_up)
    return store


def usd(pico: int) -> Decimal:
    return Decimal(pico) / 10**12


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("tenant", [None, "tenant-2"])
def test_figures_are_the_ledgers(connect: Connect, name: RangeName, tenant: str | None) -> None:
    """Spent, saved by each cause, caches and faults, whether they are in the sums yet or not."""
    rows = rows_of_weeks(1500)
    filled(connect, rows, rolled_up=900)
    about = asked({"range": name, "by": "backend"}, Scope(tenant), NOW_S, ZONE)
    with connect().reading() as transaction:
        found = overview(Book(transaction, Memory(), NOW_S, ZONE), about)
        by_backend = backends(Book(transaction, Memory(), NOW_S, ZONE), about)
    begin_us = about.span.ticks[0].at * 10**6
    mine = [row for row in rows if row.at_us >= begin_us and tenant in (None, row.tenant)]

    assert Decimal(found["money"]["spent"]) == usd(sum(row.cost or 0 for row in mine))
    assert sum(map(Decimal, found["cost"])) == Decimal(found["money"]["spent"])
    for cause in SAVINGS:
        saved = sum(getattr(row, cause) or 0 for row in mine)
        assert Decimal(found["money"]["causes"][cause.removeprefix("saved_")]) == usd(saved)
    assert Decimal(found["money"]["list"]) - Decimal(found["money"]["saved"]) == Decimal(found["money"]["spent"])
    assert sum(Decimal(line["cost"] or 0) for line in found["money"]["by"]) == Decimal(found["money"]["spent"])
    totals = found["totals"]
    assert totals["calls"] == len(mine)
    assert totals["looked_up"] == sum(row.cache in ("hit", "joined", "semantic", "miss") for row in mine)
    assert (totals["hits"], totals["joined"]) == tuple(sum(row.cache == c for row in mine) for c in ("hit", "joined"))
    assert totals["failed_upstream"] == sum(row.fault == "upstream" for row in mine)
    assert sum(sum(row["calls"]) for row in by_backend) == len(mine)
    for tokens in ("drafted_tokens", "accepted_tokens"):
        assert sum(row[tokens] for row in by_backend) == sum(getattr(row, tokens) for row in mine)
    assert found["times"]["total"]["whole"]["p50"] is not None


@pytest.mark.parametrize("name", ["1h", "24h", "7d"])
@pytest.mark.parametrize("only", [None, "agent:codex", "key:key-3"])
def test_every_way_to_tell_apart_has_all_of_it(connect: Connect, name: RangeName, only: str | None) -> None:
    """By minutes, hours or days, also of what one program or one key has asked."""
    rows = rows_of_weeks(400)
    filled(connect, rows, rolled_up=300)
    query = {"range": name} if only is None else {"range": name, "only": only}
    named, _, wanted = (only or "").partition(":")
    for by in BY:
        about = asked({**query, "by": by}, Scope(None), NOW_S, ZONE)
        with connect().reading() as transaction:
            found = overview(Book(transaction, Memory(), NOW_S, ZONE), about)["money"]["by"]
        begin_us = about.span.ticks[0].at * 10**6
        mine = [row for row in rows if row.at_us >= begin_us and (not named or getattr(row, named) == wanted)]

        assert {line["name"] for line in found} == {getattr(row, by) for row in mine}
        assert sum(Decimal(line["cost"] or 0) for line in found) == usd(sum(row.cost or 0 for row in mine))


def test_the_week_before_is_that_of_this_hour(connect: Connect) -> None:
    """Of its last day only the hours that today has had, so that a morning is no decline."""
    rows = rows_of_weeks(3000)
    filled(connect, rows, rolled_up=3000)
    with connect().reading() as transaction:
        found = overview(Book(transaction, Memory(), NOW_S, ZONE), asked({"range": "7d"}, Scope(None), NOW_S, ZONE))
    zone = ZoneInfo(ZONE)
    first = datetime(2026, 11, 2, tzinfo=zone).timestamp()
    last = datetime(2026, 11, 8, 17, tzinfo=zone).timestamp()
    before = [row for row in rows if first * 1e6 <= row.at_us < last * 1e6]

    assert Decimal(found["money"]["before"]) == usd(sum(row.cost or 0 for row in before))
    assert found["totals_before"]["calls"] == len(before)
    assert sum(Decimal(line["before"] or 0) for line in found["money"]["by"]) == Decimal(found["money"]["before"])


@pytest.mark.parametrize("name", ["24h", "7d", "30d", "month"])
def test_nothing_is_compared_with_a_span_that_was_not_seen_whole(connect: Connect, name: RangeName) -> None:
    """A ledger that began within the span before would make a rise of all that has come since."""
    rows = rows_of_weeks(600)
    day_before = range_of(name, NOW_S, ZONE).day_before
    days = Days(ZONE)
    seen = [row for row in rows if days.of(row.at_us) >= day_before]
    older = sample_row(9000, at_us=int((NOW_S - 90 * 86400) * 1e6))
    older.tenant = "tenant-1"
    about = {tenant: asked({"range": name}, Scope(tenant), NOW_S, ZONE) for tenant in (None, "tenant-1", "tenant-2")}
    store = filled(connect, seen, rolled_up=400)

    def pages(tenant: str | None) -> list[dict[str, Any]]:
        with connect().reading() as transaction:
            book = Book(transaction, Memory(), NOW_S, ZONE)
            return [overview(book, about[tenant]), caches(book, about[tenant])]

    for page in pages(None):
        assert page["totals_before"] is None
    first = pages(None)[0]
    assert first["money"]["before"] is None
    assert {line["before"] for line in first["money"]["by"]} == set(first["cost_before"]) == {None}
    store.insert([stored(msgspec.structs.astuple(older), 2, days.of(older.at_us))])

    # Who has been there for longer is told, and nobody by the calls of others.
    assert [page["totals_before"] is None for page in pages(None)] == [False, False]
    assert [page["totals_before"] is None for page in pages("tenant-2")] == [True, True]
    assert pages("tenant-1")[0]["is_empty"] is pages("tenant-2")[0]["is_empty"] is False


def test_a_ledger_is_empty_until_the_askers_first_call(connect: Connect) -> None:
    """Not where nothing has come by in the last hour, nor by calls of others."""
    row = sample_row(1, at_us=int((NOW_S - 10 * 86400) * 1e6))
    store = LedgerStore(connect(), ZONE)
    store.open()

    def is_empty(tenant: str | None) -> object:
        with connect().reading() as transaction:
            about = asked({"range": "1h"}, Scope(tenant), NOW_S, ZONE)
            return overview(Book(transaction, Memory(), NOW_S, ZONE), about)["is_empty"]

    assert [is_empty(tenant) for tenant in (None, row.tenant, "other")] == [True, True, True]
    store.insert([stored(msgspec.structs.astuple(row), 1, Days(ZONE).of(row.at_us))])
    assert [is_empty(tenant) for tenant in (None, row.tenant, "other")] == [False, False, True]
    store.roll_up(10)
    assert [is_empty(tenant) for tenant in (None, row.tenant, "other")] == [False, False, True]


def test_what_is_saved_by_calls_without_a_price_is_not_known(connect: Connect) -> None:
    """It is said of a model, as `slipstream ledger report` says it, and not taken for nothing."""
    rows = [sample_row(n, at_us=int(NOW_S * 1e6) - n) for n in range(12)]
    for row in rows:
        row.model = "priced" if row.n % 2 else "unpriced"
        for name in SAVINGS:
            setattr(row, name, 10**9 if row.n % 2 else None)
    filled(connect, rows, rolled_up=12)
    about = asked({}, Scope(None), NOW_S, ZONE)
    with connect().reading() as transaction:
        book = Book(transaction, Memory(), NOW_S, ZONE)
        told = [overview(book, about)["money"]["by"], caches(book, about)["models"]]

    for lines in told:
        saved = {line["name"]: line["saved"] for line in lines}
        assert saved["unpriced"] is None
        assert Decimal(saved["priced"]) > 0


def test_one_model_is_all_that_is_looked_at(connect: Connect) -> None:
    """`only` narrows everything on the page; a name that is SQL is a name."""
    rows = rows_of_weeks(500)
    filled(connect, rows, rolled_up=500)
    with connect().reading() as transaction:
        one = overview(
            Book(transaction, Memory(), NOW_S, ZONE),
            asked({"range": "30d", "only": "model:model-1"}, Scope(None), NOW_S, ZONE),
        )
        none = overview(
            Book(transaction, Memory(), NOW_S, ZONE), asked({"only": "model:' OR 1=1 --"}, Scope(None), NOW_S, ZONE)
        )

    assert {line["name"] for line in one["money"]["by"]} == {"model-1"}
    assert none["totals"]["calls"] == 0


def test_a_month_is_foretold_from_like_weekdays(connect: Connect) -> None:
    """Mondays cost 7 dollars, other days 1: the rest of the month will do as much."""
    rows = []
    for back in range(1, 35):
        day = datetime(2026, 11, 15, 12, tzinfo=UTC) - timedelta(days=back)
        row = sample_row(back, at_us=int(day.timestamp() * 1e6))
        row.cost = (7 if day.weekday() == 0 else 1) * 10**12
        rows.append(row)
    filled(connect, rows, rolled_up=100)
    with connect().reading() as transaction:
        month = overview(Book(transaction, Memory(), NOW_S, ZONE), asked({}, Scope(None), NOW_S, ZONE))["money"][
            "month"
        ]
    # The 1st to the 14th have two Mondays, the 15th to the 30th three.
    assert (month["name"], Decimal(month["so_far"])) == ("2026-11", Decimal(12 + 2 * 7))
    assert Decimal(month["likely"]) == 26 + 13 + 3 * 7
    assert Decimal(month["least"]) == Decimal(month["most"]) == Decimal(month["likely"])


@given(
    name=st.sampled_from(RANGES),
    now_s=st.integers(1_700_000_000, 1_900_000_000),
    zone=st.sampled_from(["UTC", ZONE, "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe"]),
)
def test_ranges_end_now_and_leave_nothing_out(name: RangeName, now_s: int, zone: str) -> None:
    """Their steps follow each other over any change of the clocks, and so do those that they are compared with."""
    span = range_of(name, now_s, zone)
    numbers = [tick.number for tick in span.ticks]
    begins = [tick.at for tick in span.ticks]
    before = [tick.before for tick in span.ticks if tick.before is not None]

    assert begins == sorted(begins)
    assert begins[-1] <= now_s < begins[-1] + {"minute": 60, "hour": 3600, "day": 26 * 3600}[span.step]
    if span.step != "day":
        assert numbers == list(range(numbers[0], numbers[0] + {"minute": 60, "hour": 24}[span.step]))
    else:
        today = datetime.fromtimestamp(now_s, ZoneInfo(zone)).date()
        assert numbers == [day_number(today - timedelta(days=back)) for back in reversed(range(len(numbers)))]
        assert all(date.fromisoformat(str(number)) for number in before)
    assert before == sorted(set(before))
    assert before[-1] < numbers[0]


def test_day_of_25_hours_is_compared_with_no_hour_that_it_is_made_of() -> None:
    """In its last hour; what it is compared with ends where the span begins."""
    span = range_of("7d", datetime(2026, 10, 25, 23, 30, tzinfo=ZoneInfo("Europe/Berlin")).timestamp(), "Europe/Berlin")
    first_hour = span.ticks[0].at // 3600

    assert span.before_hours == Within("hour", first_hour - 24, first_hour - 1)


@pytest.mark.parametrize("name", RANGES)
def test_service_is_told_by_prompt_by_route_by_tenant_and_by_priority(connect: Connect, name: RangeName) -> None:
    """Counts of each bucket are those of the rows, and burn is what was late in the hours that end now."""
    rows = rows_of_weeks(1200)
    for number, row in enumerate(rows):
        row.input_tokens = (500, 2000, 5000, 20_000, 100_000)[number % 5]
        row.status, row.end = 200, "clean"
    filled(connect, rows, rolled_up=700)
    about = asked({"range": name}, Scope(None), NOW_S, ZONE)
    with connect().reading() as transaction:
        found = service(Book(transaction, Memory(), NOW_S, ZONE), about)
        whole = overview(Book(transaction, Memory(), NOW_S, ZONE), about)
    mine = [row for row in rows if row.at_us >= about.span.ticks[0].at * 10**6]

    assert [line["name"] for line in found["times"]["prompt"]] == ["0", "1024", "4096", "16384", "65536"]
    assert sum(line["total"]["calls"] for line in found["times"]["prompt"]) == len(mine)
    assert found["times"]["route"][0]["total"]["p95"] == whole["times"]["total"]["whole"]["p95"]
    assert sum(line["calls"] for line in found["tenants"]) == len(mine)
    in_time = {line["name"]: (line["calls"], line["slo_met"]) for line in found["priorities"]}
    assert in_time == {
        name: (
            sum(row.priority == name for row in mine),
            sum(row.priority == name and row.in_slo is True for row in mine),
        )
        for name in ("high", "normal", "low")
    }
    now_hour = int(NOW_S // 3600)
    hours = [row for row in rows if row.at_us // 3_600_000_000 in (now_hour - 1, now_hour) and row.in_slo is not None]
    late = sum(not row.in_slo for row in hours) / len(hours)
    assert found["routes"][0]["burn"]["1h"] == pytest.approx(late / 0.01, abs=0.01)


def test_the_busiest_of_many_routes_are_told(connect: Connect) -> None:
    """Not those that come first by their names."""
    rows = [sample_row(n, at_us=int(NOW_S * 1e6) - n) for n in range(1, 131)]
    for row in rows:
        # The last one has ten calls, all others one or two.
        row.route = f"route-{min(row.n % 64, 60):02}"
        row.status, row.end, row.in_slo = 200, "clean", True
    filled(connect, rows, rolled_up=130)
    with connect().reading() as transaction:
        about = asked({}, Scope(None), NOW_S, ZONE)
        found = service(Book(transaction, Memory(), NOW_S, ZONE), about)

    for told in (found["times"]["route"], found["routes"]):
        assert (len(told), told[0]["name"]) == (50, "route-60")


def test_what_has_happened_is_marked_where_it_began(connect: Connect) -> None:
    """A breaker that opened twice, a budget that is spent, the policy's change; not what was before the span."""
    store = LedgerStore(connect(), ZONE)
    store.open()
    minute = int(NOW_S // 60)
    outages = [GaugeSample(minute - back, "out", "up", 1.0) for back in (50, 49, 20)]
    spent = [GaugeSample(minute - back, "spent", "month", float(back < 30)) for back in range(40)]
    store.keep_samples([*outages, *spent, GaugeSample(minute - 90, "out", "down", 1.0)])
    revisions = Revisions(Revision("one", NOW_S - 9000, None))
    revisions.applied(Revision("two", NOW_S - 1000, None))
    span = range_of("1h", NOW_S, ZONE)
    with connect().reading() as transaction:
        found = happened(transaction, span, revisions)

    assert [(mark["text"], int((NOW_S - mark["at"]) // 60)) for mark in found] == [
        ("policy two", 16),
        ("up out of rotation", 20),
        ("budget month spent", 29),
        ("up out of rotation", 50),
    ]

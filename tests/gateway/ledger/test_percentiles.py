"""Percentiles out of counts: those of the calls themselves, to 3.2 %, whatever is counted already."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from datetime import date

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import ConfigurationError
from gateway.ledger.days import Days, hour_text
from gateway.ledger.latencies import width_us
from gateway.ledger.percentiles import Spread, spreads
from gateway.ledger.report import Period
from gateway.ledger.row import Row, Stored, stored
from gateway.ledger.store import LedgerStore
from tests.gateway.ledger.conftest import Connect
from tests.support.ledger import START_US, sample_row

KATHMANDU = "Asia/Kathmandu"
DAYS = Days(KATHMANDU)
ALWAYS = Period(None, None)
WITHIN = 0.032


def of(row: Row) -> Stored:
    return stored(msgspec.structs.astuple(row), 1, DAYS.of(row.at_us))


def timed_rows(number: int, seed: int = 1) -> list[Row]:
    """Rows of a few days whose times are from a microsecond to hours."""
    random_ = random.Random(seed)
    rows = []
    for n in range(number):
        row = sample_row(n, at_us=START_US + random_.randrange(5 * 86400) * 10**6)
        row.total_us = int(math.exp(random_.uniform(0, 24)))
        row.ttft_us = row.total_us // 3 if n % 2 else None
        row.tpot_us = random_.randrange(100, 100_000) if n % 4 == 1 else None
        row.input_tokens = random_.choice((0, 1023, 1024, 5000, 16_384, 100_000))
        rows.append(row)
    return rows


def true_percentile(times: list[int], percent: float) -> int:
    return sorted(times)[max(1, math.ceil(len(times) * percent / 100)) - 1]


def is_close(told_us: float, true_us: float) -> bool:
    return abs(told_us - true_us) <= WITHIN * true_us


@given(st.integers(0, 2**42 - 1))
def test_count_holds_only_times_near_its_middle(time_us: int) -> None:
    """Wherever it is."""
    at_least_us = time_us - time_us % width_us(time_us)

    assert width_us(at_least_us) == width_us(time_us)
    assert at_least_us <= time_us < at_least_us + width_us(at_least_us)
    assert is_close(Spread((), "total", ((at_least_us, 1),)).percentiles_us([50])[0], time_us)


def test_percentiles_are_those_of_the_calls(connect: Connect) -> None:
    """For each measure, tenant and length of prompts; before, while and after they are counted; and none is lost."""
    database = connect()
    store = LedgerStore(database, KATHMANDU)
    store.open()
    rows = timed_rows(2000)
    LedgerStore(connect(), KATHMANDU).insert([of(row) for row in rows])
    true: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row in rows:
        prompt = max(bound for bound in (0, 1024, 4096, 16384, 65536) if bound <= row.input_tokens)
        for measure, time_us in (("ttft", row.ttft_us), ("tpot", row.tpot_us), ("total", row.total_us)):
            if time_us is not None and row.status < 400:
                true[row.tenant, str(prompt), measure].append(time_us)

    for _ in range(4):
        found = {(*spread.values, spread.measure): spread for spread in spreads(database, ("tenant", "prompt"), ALWAYS)}
        assert found.keys() == true.keys()
        for key, spread in found.items():
            assert spread.calls == len(true[key])
            for percent in (0, 50, 90, 95, 99, 100):
                assert is_close(spread.percentiles_us([percent])[0], true_percentile(true[key], percent))
        store.count_latencies(700)


def test_calls_that_failed_are_left_out(connect: Connect) -> None:
    """Refused, broken off, further attempts, and lines of a provider's batch, which have no time."""
    store = LedgerStore(database := connect(), KATHMANDU)
    store.open()
    fine, failed, cut, part, line = (sample_row(n) for n in range(1, 6))
    failed.status, cut.end, part.part, line.kind = 502, "upstream_cut", 1, "batch"
    store.insert([of(row) for row in (fine, failed, cut, part, line)])
    store.count_latencies(10)

    assert [(spread.measure, spread.calls) for spread in spreads(database, (), ALWAYS)] == [("total", 1)]


def test_days_are_those_of_the_zone(connect: Connect) -> None:
    """Also where these begin in the middle of an hour; and a period has all of its last one."""
    store = LedgerStore(database := connect(), KATHMANDU)
    store.open()
    rows = timed_rows(500)
    store.insert([of(row) for row in rows])
    store.count_latencies(10_000)
    day = DAYS.of(START_US + 86400 * 10**6)
    only = date(day // 10_000, day // 100 % 100, day % 100)
    (told,) = (s for s in spreads(database, ("day",), Period(only, only)) if s.measure == "total")

    assert told.values == (only.isoformat(),)
    assert told.calls == sum(DAYS.of(row.at_us) == day and row.status < 400 for row in rows)


def test_counts_go_with_the_rows_and_rows_only_once_they_are_counted(connect: Connect) -> None:
    """By hour there is as much as there are rows."""
    store = LedgerStore(database := connect(), KATHMANDU)
    store.open()
    rows = timed_rows(300)
    LedgerStore(connect(), KATHMANDU).insert([of(row) for row in rows])
    end_us = START_US + 30 * 86400 * 10**6
    store.roll_up(1000)
    store.count_latencies(100)
    store.prune(end_us, DAYS.of(end_us))
    with database.reading() as transaction:
        assert list(transaction.fetch("SELECT COUNT(*) FROM calls")) == [(200,)]
    store.count_latencies(1000)
    store.prune(end_us, DAYS.of(end_us))

    assert list(spreads(database, (), ALWAYS)) == []


def test_hours_have_the_calls_that_began_in_them(connect: Connect) -> None:
    """By tenant, route and length of prompts; not by model, and that is said."""
    store = LedgerStore(database := connect(), KATHMANDU)
    store.open()
    rows = [row for row in timed_rows(400) if row.status < 400]
    store.insert([of(row) for row in rows])
    store.count_latencies(300)
    told = {s.values: s.calls for s in spreads(database, ("hour", "route"), ALWAYS) if s.measure == "total"}

    assert told == Counter((hour_text(row.at_us // 3_600_000_000), row.route) for row in rows)
    with pytest.raises(ConfigurationError, match="no times are counted by hour and model together: choose among day"):
        list(spreads(database, ("hour", "model"), ALWAYS))

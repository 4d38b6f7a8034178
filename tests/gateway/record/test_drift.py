"""How far the metrics and the ledger's journal are apart: not at all, but where the journal does not take a row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from backends.charges.charge import Charge
from backends.charges.usage import Usage
from backends.clock import SystemClock
from backends.operations import Operation
from backends.protocol import Facts
from gateway.ledger.days import Days
from gateway.ledger.ledger import Ledger
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.metrics.charges import ChargeMetrics
from gateway.metrics.metrics import Metrics
from gateway.record.booking import Booking
from gateway.record.exchange import Exchange, Observer
from gateway.record.savings_metrics import SavingsMetrics
from gateway.sql.sqlite import SqliteDatabase


class Record:
    """What a process records of its calls, without the calls."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        clock = SystemClock()
        self.metrics = Metrics(CollectorRegistry())
        self.observer = Observer(clock, self.metrics, None)
        store = LedgerStore(SqliteDatabase(folder / "ledger.sqlite3", LEDGER), "UTC")
        self.ledger = Ledger(
            store,
            folder / "journal",
            max_segments=2,
            days=Days("UTC"),
            keep_s=86400.0,
            outlives_power=False,
            clock=clock,
        )
        self.booking = Booking(self.ledger, clock, self.observer, self.metrics.of(SavingsMetrics))

    def begun(self) -> Exchange:
        """A call that a route has taken."""
        exchange = Exchange(Operation.CHAT, 0.0, route="r", facts=Facts(charges=[]))
        self.booking.begins(exchange)
        return exchange

    def over(self, exchange: Exchange) -> None:
        """It is."""
        self.observer.finished(exchange)
        self.booking.ends(exchange)

    def cost(self) -> float:
        """What the metrics say to somebody who looks."""
        for step in self.observer.flushes():
            step()
        return self.shown()

    def shown(self) -> float:
        """What is written there so far."""
        value: float = self.metrics.of(ChargeMetrics).cost.labels("r", "up")._value.get()
        return value


@asynccontextmanager
async def recording(folder: Path) -> AsyncIterator[Record]:
    record = Record(folder)
    await record.ledger.open()
    try:
        yield record
    finally:
        record.booking.flush()
        await record.ledger.aclose()


def spend(exchange: Exchange, cost: int) -> Charge:
    """An attempt of the call whose answer has not ended."""
    charge = Charge("up", "m", cost=cost)
    assert exchange.facts.charges is not None
    exchange.facts.charges.append(charge)
    return charge


async def test_calls_that_the_journal_has_are_no_drift(tmp_path: Path) -> None:
    """Nor are attempts that end after their call, for those who have joined it."""
    async with recording(tmp_path) as record:
        exchange = record.begun()
        spend(exchange, 0).settle_at(3, Usage(3, 0))
        late = spend(exchange, 0)
        record.over(exchange)
        assert record.booking.drift() == 0
        late.settle_at(5_000_000_000_007, Usage(5, 0))
        assert record.booking.drift() == 0

    assert record.cost() == 5.00000000001


async def test_what_is_asked_beside_a_call_is_in_both(tmp_path: Path) -> None:
    """The check of an answer, or its judge, is paid like any attempt."""
    async with recording(tmp_path) as record:
        exchange = record.begun()
        record.over(exchange)
        assert exchange.facts.extra is not None
        check = Charge("up", "m")
        exchange.facts.extra(check)
        check.settle_at(1_500_000_000_000, Usage(5, 0))
        assert record.booking.drift() == 0

    assert record.cost() == 1.5


async def test_a_row_that_the_journal_does_not_take_is_a_drift(tmp_path: Path) -> None:
    """Its money was spent, and the ledger will never know; a call without a price is none."""
    async with recording(tmp_path) as record:
        written, dropped, unpriced = record.begun(), record.begun(), record.begun()
        spend(written, 0).settle_at(11, Usage(1, 0))
        record.over(written)
    # The journal is closed now.
    spend(dropped, 0).settle_at(7, Usage(1, 0))
    spend(unpriced, 0).settle_at(None, Usage(1, 0))
    record.over(dropped)
    record.over(unpriced)

    assert record.booking.drift() == 7


async def test_two_may_bring_the_metrics_up_to_date_at_once(tmp_path: Path) -> None:
    """A scrape and the workers' own turn: what one has counted the other leaves alone, and nothing is counted twice."""
    async with recording(tmp_path) as record:
        exchange = record.begun()
        for backend in ("up", "down"):
            charge = spend(exchange, 0)
            charge.backend = backend
            charge.settle_at(2_000_000_000_000, Usage(5, 0))
        record.over(exchange)
        one, other = record.observer.flushes(), record.observer.flushes()
        next(one)()
        while (step := next(one, None)) is not None:
            step()
            if (step := next(other, None)) is not None:
                step()

    assert record.cost() == 2.0


async def test_a_worker_writes_what_upstreams_cost_for_all_before_somebody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be killed at any time. A process that is alone has nobody to write it for."""
    async with recording(tmp_path) as alone, recording(tmp_path / "worker") as worker:
        for record, shared in ((alone, False), (worker, True)):
            if shared:
                monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
            exchange = record.begun()
            spend(exchange, 0).settle_at(1_500_000_000_000, Usage(5, 0))
            record.over(exchange)
            running = asyncio.create_task(record.observer.run())
            async with asyncio.timeout(5):
                while not record.observer.charges.counted:
                    await asyncio.sleep(0.01)
            running.cancel()

    assert (alone.shown(), worker.shown()) == (0, 1.5)

"""Gauges are kept each minute: what several processes tell comes together, and what is old goes."""

from __future__ import annotations

from gateway.ledger.samples import KEPT_MINUTES, GaugeSample, Sampled, sampled
from gateway.ledger.store import LedgerStore
from tests.gateway.ledger.conftest import Connect

MINUTE = 29_000_000


def test_processes_add_up_or_the_greatest_stands_for_all(connect: Connect) -> None:
    """Calls in flight are a sum, a breaker that is open anywhere is open; names may be anything."""
    store = LedgerStore(connect(), "UTC")
    store.open()
    name = "o'clock; --"
    for in_flight, out in ((3, 0), (4, 1), (0, 0)):
        store.keep_samples([GaugeSample(MINUTE, "in_flight", name, in_flight), GaugeSample(MINUTE, "out", name, out)])
    store.keep_samples([GaugeSample(MINUTE + 1, "out", name, 1)])
    with connect().reading() as transaction:
        by_minute = sampled(transaction, ("in_flight", "out"), MINUTE * 60, 1)
        by_hour = sampled(transaction, ("out",), 0, 60)

    at_s = MINUTE * 60
    assert by_minute == [
        Sampled(at_s, "in_flight", name, 7, 1),
        Sampled(at_s, "out", name, 1, 1),
        Sampled(at_s + 60, "out", name, 1, 1),
    ]
    assert by_hour == [Sampled(at_s // 3600 * 3600, "out", name, 1, 2)]


def test_what_is_old_goes(connect: Connect) -> None:
    """After eight days; not for a clock that was ahead while a sample was taken."""
    store = LedgerStore(connect(), "UTC")
    store.open()
    for minute in (MINUTE, MINUTE + 1, MINUTE + 1 + KEPT_MINUTES):
        store.keep_samples([GaugeSample(minute, "out", "a", 1)])
    with connect().reading() as transaction:
        assert len(sampled(transaction, ("out",), 0, 1)) == 3
    store.forget_old_samples(MINUTE + 1 + KEPT_MINUTES)
    with connect().reading() as transaction:
        kept = [sample.at_s // 60 for sample in sampled(transaction, ("out",), 0, 1)]

    assert kept == [MINUTE + 1, MINUTE + 1 + KEPT_MINUTES]

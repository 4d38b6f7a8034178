"""Savings add up: whatever became of a call, the parts of its row come to its list cost less its cost."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.charges.charge import Charge
from backends.charges.usage import Usage
from backends.protocol import CacheOutcome
from gateway.ledger.row import SAVINGS, Row
from gateway.record.savings import note_answer, note_batch_line, note_extra, note_given
from policies.prices.price import Price
from policies.prices.settings import PricePolicy

DEAR = {"input_per_1m": 10, "output_per_1m": 30, "cached_input_per_1m": 1, "cache_write_5m_per_1m": 12.5}
CHEAP = {"input_per_1m": 1, "output_per_1m": 3, "cached_input_per_1m": 0.5}
TIERS = {"flex": {"input_per_1m": 0.5, "output_per_1m": 1.5}}
LONG = [{"above_tokens": 1000, "input_per_1m": 20, "output_per_1m": 45}]


def price(rates: dict[str, Any], **more: Any) -> Price:
    """As a policy says it."""
    return PricePolicy(**rates, **more).exact("route")


PRICES = [
    None,
    price(DEAR),
    price(CHEAP),
    price(CHEAP, service_tiers=TIERS, batch={"input_per_1m": 0.5, "output_per_1m": 1.5}),
    price(DEAR, long_context=LONG, per_request=0.001),
]
COUNTS = st.integers(0, 3000)
USAGES = st.builds(
    Usage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, reasoning_tokens=COUNTS, service_tier=st.sampled_from(["", "flex"])
).map(Usage.bounded)


def total(row: Row) -> int | None:
    """All parts together; None where one is not known."""
    parts = [getattr(row, name) for name in SAVINGS]
    return None if None in parts else sum(parts)


def adds_up(row: Row) -> bool:
    """Exactly; and where it is not known, that is because something it follows from is not."""
    if row.cost is None or row.list_cost is None:
        return total(row) is None
    return total(row) == row.list_cost - row.cost


def row_of(cost: int | None) -> Row:
    """Of a charge."""
    return Row(n=1, at_us=1, cost=cost)


@pytest.mark.parametrize(("asked", "paid"), list(product(PRICES, PRICES)))
@given(usage=USAGES, shared=st.integers(0, 3), is_ours=st.booleans())
def test_savings_of_every_combination_add_up(
    asked: Price | None, paid: Price | None, usage: Usage, shared: int, is_ours: bool
) -> None:
    """Of prices, kinds, tiers, shares of a window, and of who had the prompt kept."""
    charge = Charge("up", "m", paid)
    charge.is_kept_by_gateway = is_ours
    cost = paid.amount(usage) if paid is not None else None
    # A caller's share of a window is not exactly what its own tokens cost.
    charge.settle_at(cost if cost is None or not shared else cost - shared, usage)
    rows = [row_of(charge.cost), row_of(charge.cost), row_of(None)]
    note_answer(rows[0], asked, charge)
    note_extra(rows[1])
    rows[2].cost = paid.batch_amount(usage) if paid is not None else None
    note_batch_line(rows[2], asked, paid, usage)

    assert all(map(adds_up, rows))
    if total(rows[0]) is not None:
        assert (rows[0].saved_prompt if not is_ours else rows[0].saved_provider) == 0
    if rows[1].cost is not None:
        assert (rows[1].list_cost, rows[1].saved_extra) == (0, -rows[1].cost)


def test_line_of_a_batch_without_usage_costs_nothing_only_where_it_failed() -> None:
    """What an answer cost that tells no usage nobody knows."""
    answered, failed = row_of(None), row_of(None)
    failed.error = "line_failed"
    for row in (answered, failed):
        note_batch_line(row, PRICES[-1], PRICES[-1], Usage())

    assert (answered.cost, answered.list_cost, total(answered)) == (None, None, None)
    assert (failed.cost, failed.list_cost, total(failed)) == (0, 0, 0)


@pytest.mark.parametrize("outcome", [None, *CacheOutcome])
@given(usage=USAGES)
def test_savings_of_what_a_cache_gave_are_its_list_cost(outcome: CacheOutcome | None, usage: Usage) -> None:
    """As one part: the cache that had it. What nobody answered saves nothing."""
    for asked, told in product(PRICES, (usage, None)):
        row = row_of(0)
        note_given(row, asked, told, outcome)

        assert adds_up(row)
        if outcome in (CacheOutcome.HIT, CacheOutcome.SEMANTIC, CacheOutcome.JOINED):
            assert (row.list_cost is None) is (asked is None or told is None)
        else:
            assert (row.list_cost, total(row)) == (0, 0)


def test_savings_by_hand() -> None:
    """A dear model was asked for, a cheap one answered in a cheaper tier, with half of its prompt kept."""
    charge = Charge("up", "m", PRICES[3])
    charge.is_kept_by_gateway = True
    charge.settle(Usage(100, 10, 50, service_tier="flex"))
    row = row_of(charge.cost)
    note_answer(row, PRICES[1], charge)

    pico = 10**6
    assert row.list_cost == (100 * 10 + 10 * 30) * pico
    assert row.saved_cheaper == row.list_cost - (100 * 1 + 10 * 3) * pico
    assert row.saved_prompt == 50 * pico // 2
    # From 0.5 and 1 a token to 0.5, and from 3 to 1.5.
    assert row.saved_batch == (50 * 1 + 50 * 0.5 + 10 * 3 - 100 * 0.5 - 10 * 1.5) * pico
    assert row.cost == (100 * 0.5 + 10 * 1.5) * pico

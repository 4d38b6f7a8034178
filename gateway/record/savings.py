"""What the gateway has saved, part by part: whole pico-dollars that add up.

There is one counterfactual for a call: the model that was asked for, at its list price, in the usual tier, with nothing
of its prompt kept. From there to what was paid it goes in steps, and each step is a part: what is left after the last
one is what was paid, so the parts of a row add up to its list cost less its cost, whatever the steps were.
"""

from __future__ import annotations

import msgspec

from backends.charges.charge import Charge, Pricing
from backends.charges.usage import Usage
from backends.protocol import CacheOutcome
from gateway.ledger.row import Row

_OF_CACHES = {
    CacheOutcome.HIT: "saved_exact",
    CacheOutcome.JOINED: "saved_joined",
    CacheOutcome.SEMANTIC: "saved_semantic",
}
_NOTHING = Usage()


def costs_list_price(asked: Pricing | None, charge: Charge) -> bool:
    """Whether the attempt that a call was answered with cost what the list says, with nothing kept, nor in any tier but
    the usual one: most do, and save nothing.
    """
    usage, price = charge.usage, charge.price
    if usage is None or price is None or asked is None or not charge.is_at_price:
        return False
    return (price is asked or price.name == asked.name) and _is_plain(usage)


def note_given(row: Row, asked: Pricing | None, usage: Usage | None, outcome: CacheOutcome | None) -> None:
    """Nobody was asked for this call. What a cache, or another call, had of it would have cost the list price."""
    part = _OF_CACHES.get(outcome) if outcome is not None else None
    if part is None:
        _note_nothing(row, 0)
    elif asked is not None and usage is not None:
        _note_nothing(row, asked.amount(_plain(usage)))
        setattr(row, part, row.list_cost)


def note_answer(row: Row, asked: Pricing | None, charge: Charge) -> None:
    """The attempt that the call was answered with; its cost is in the row. What is not known stays so."""
    usage, price, cost = charge.usage, charge.price, charge.cost
    if usage is None or costs_list_price(asked, charge):
        _note_nothing(row, cost)
        return
    plain = _plain(usage)
    if cost is not None and plain == _NOTHING:
        # A flat price, of a call that only passes through: it is the same without a gateway.
        _note_nothing(row, cost)
        return
    if asked is None:
        return
    is_listed = price is not None and price.name == asked.name
    listed = asked.amount(plain)
    if cost is None or price is None:
        row.list_cost = listed
        return
    _note_nothing(row, listed)
    if is_listed and listed == cost:
        return
    served = listed if is_listed else price.amount(plain)
    kept = served if plain is usage else price.amount(msgspec.structs.replace(usage, service_tier=""))
    in_tier = kept if not usage.service_tier else price.amount(usage)
    row.saved_cheaper = listed - served
    if charge.is_kept_by_gateway:
        row.saved_prompt = served - kept
    else:
        row.saved_provider = served - kept
    row.saved_batch = kept - in_tier
    row.saved_share = in_tier - cost


def note_batch_line(row: Row, asked: Pricing | None, price: Pricing | None, usage: Usage) -> None:
    """A line that a provider's Batch API has answered, or failed, at the cost that is in the row."""
    if row.error and usage == _NOTHING:
        row.cost = 0
    charge = Charge(row.backend, row.model, price, usage if usage != _NOTHING else None, row.cost)
    note_answer(row, asked, charge)
    if row.saved_share is not None:
        # What is left after all else is the price of batches.
        row.saved_batch = (row.saved_batch or 0) + row.saved_share
        row.saved_share = 0


def note_extra(row: Row) -> None:
    """Another attempt of a call, which no caller would have made without a gateway."""
    if row.cost is not None:
        _note_nothing(row, 0)
        row.saved_extra = -row.cost


def _note_nothing(row: Row, list_cost: int | None) -> None:
    if list_cost is None:
        return
    row.list_cost = list_cost
    row.saved_exact = row.saved_joined = row.saved_semantic = row.saved_prompt = row.saved_provider = 0
    row.saved_cheaper = row.saved_batch = row.saved_share = row.saved_extra = 0


def _plain(usage: Usage) -> Usage:
    """The same in the usual tier, with nothing kept or written."""
    if _is_plain(usage):
        return usage
    return msgspec.structs.replace(usage, cached_tokens=0, written_5m_tokens=0, written_1h_tokens=0, service_tier="")


def _is_plain(usage: Usage) -> bool:
    return not (usage.cached_tokens or usage.written_5m_tokens or usage.written_1h_tokens or usage.service_tier)

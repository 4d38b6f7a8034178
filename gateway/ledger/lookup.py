"""One of the newest calls, by the request id that its caller knows it by."""

from __future__ import annotations

from typing import Any

from gateway.ledger.amounts import usd_text
from gateway.ledger.row import AMOUNTS, FIELDS, SAVINGS, TOKENS
from gateway.ledger.schema import quoted
from gateway.sql.database import Transaction

NEWEST = 20_000
"""Rows that are looked through: there is no index of request ids, which would cost each call more than who asks gains.
"""
_TEXTS = ("request_id", "operation", "route", "model", "served", "cache", "end", "error", "fault")


def parts_of(transaction: Transaction, worker: int, n: int) -> list[dict[str, Any]]:
    """The rows of a call, with their numbers in the store: itself, and what was charged or corrected for it later."""
    names = ("seq", *FIELDS)
    found = transaction.fetch(
        f"SELECT {quoted(names)} FROM calls WHERE worker = ? AND n = ? ORDER BY part", (worker, n)
    )
    return [dict(zip(names, row, strict=True)) for row in found]


def newest_call(transaction: Transaction, tenant: str, key: str, request_id: str) -> dict[str, Any] | None:
    """What became of a call of that key, the newest if several had that id; None where it is not among the newest."""
    ((last,),) = transaction.fetch("SELECT COALESCE(MAX(seq), 0) FROM calls")
    found = next(
        transaction.fetch(
            "SELECT worker, n FROM calls WHERE seq > ? AND part = 0 AND request_id = ? AND tenant = ? AND key = ? "
            "ORDER BY seq DESC LIMIT 1",
            (last - NEWEST, request_id, tenant, key),
        ),
        None,
    )
    return None if found is None else _shown(parts_of(transaction, *found))


def amounts_of(parts: list[dict[str, Any]]) -> dict[str, int | None]:
    """All `AMOUNTS` of a call, in pico-dollars; one is not known where a part of it is not."""
    return {name: _total([part[name] for part in parts]) for name in AMOUNTS}


def _total(amounts: list[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _shown(parts: list[dict[str, Any]]) -> dict[str, Any]:
    call = parts[0]
    amounts = amounts_of(parts)
    return {
        **{name: call[name] or None for name in _TEXTS},
        "stream": bool(call["stream"]),
        "status": call["status"],
        "at": call["at_us"] / 1e6,
        "usage": {name: sum(part[name] for part in parts) for name in TOKENS},
        "estimated": any(part["estimated"] for part in parts),
        "cost_usd": usd_text(amounts["cost"]),
        "list_usd": usd_text(amounts["list_cost"]),
        "saved_usd": {name.removeprefix("saved_"): usd_text(amounts[name]) for name in SAVINGS if amounts[name]},
        "queue_ms": _ms(call["queue_us"]),
        "ttft_ms": _ms(call["ttft_us"]),
        "tpot_ms": _ms(call["tpot_us"]),
        "total_ms": _ms(call["total_us"]),
    }


def _ms(us: int | None) -> float | None:
    return None if us is None else us / 1000

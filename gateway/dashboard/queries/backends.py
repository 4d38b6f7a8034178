"""What each backend has done over a span."""

from __future__ import annotations

from typing import Any

from gateway.dashboard.queries.asked import Selection
from gateway.dashboard.queries.book import Book
from gateway.dashboard.queries.stood import Past, stood
from gateway.ledger.sums import Line
from gateway.sql.database import Transaction

NEWEST = 10_000
"""Rows that are looked at for it."""
_MOST_PAIRS = 100
_WHOLE = (
    *("failed_upstream", "input_tokens", "cached_tokens", "ttft_us", "ttft_calls"),
    *("drafted_tokens", "accepted_tokens"),
)


def backends(book: Book, asked: Selection) -> list[dict[str, Any]]:
    """Those that have answered, or failed to, by their names; calls that no backend was asked for are in none."""
    asked.check_size(book.transaction)
    span = asked.span
    steps: dict[str, dict[str, Line]] = {}
    for line in book.sums(("backend", span.step), span.within, asked.only, ("calls", *_WHOLE)):
        steps.setdefault(line.values[0], {})[line.values[1]] = line
    history = stood(book.transaction, span, ("in_flight", "out", "silent"))
    for name in history:
        # One that nobody has asked for has a past, too.
        steps.setdefault(name, {})
    return [
        {
            "name": name,
            "in_flight": history.get(name, {}).get("in_flight", Past([], 0)).most,
            "minutes_out": history.get(name, {}).get("out", Past([], 0)).minutes,
            "minutes_silent": history.get(name, {}).get("silent", Past([], 0)).minutes,
            "calls": [
                by_step[at].sums["calls"] if at in by_step else 0
                for at in (span.text(tick.number) for tick in span.ticks)
            ],
            **_whole(list(by_step.values())),
        }
        for name, by_step in sorted(steps.items())
        if name
    ]


def served(transaction: Transaction) -> list[dict[str, Any]]:
    """Which models have answered for which, of the newest calls: those that were served under another name first."""
    found = transaction.fetch(
        "SELECT model, backend, served, COUNT(*) AS calls FROM calls WHERE seq > (SELECT MAX(seq) FROM calls) - ? "
        "AND part = 0 AND served <> '' GROUP BY model, backend, served "
        "ORDER BY (served = model), calls DESC, model, backend, served LIMIT ?",
        (NEWEST, _MOST_PAIRS),
    )
    return [dict(zip(("model", "backend", "served", "calls"), row, strict=True)) for row in found]


def _whole(lines: list[Line]) -> dict[str, Any]:
    of = {name: sum(line.sums[name] for line in lines) for name in _WHOLE}
    return {
        "failed": of["failed_upstream"],
        "input_tokens": of["input_tokens"],
        "cached_tokens": of["cached_tokens"],
        "drafted_tokens": of["drafted_tokens"],
        "accepted_tokens": of["accepted_tokens"],
        "mean_ttft_ms": round(of["ttft_us"] / of["ttft_calls"] / 1000, 1) if of["ttft_calls"] else None,
    }

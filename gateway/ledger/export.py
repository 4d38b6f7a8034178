"""The rows of a ledger for other programs: a line for each call, what it cost with all its parts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from gateway.ledger.amounts import usd_text
from gateway.ledger.days import day_text
from gateway.ledger.report import Period
from gateway.ledger.row import AMOUNTS, FIELDS, SAVINGS
from gateway.ledger.schema import quoted
from gateway.ledger.sums import check_version
from gateway.sql.database import Database, Transaction

_PAGE = 2000
_HIDDEN = frozenset({"n", "part", "at_us", "price", *AMOUNTS})
_PLAIN = tuple(name for name in FIELDS if name not in _HIDDEN)
_BOOLEANS = ("stream", "estimated", "in_slo")
COLUMNS = ("at", "day", *_PLAIN, "price", *(f"{name.removesuffix('_cost')}_usd" for name in AMOUNTS), "saved_usd")
"""What each line says, in this order."""
_READ = ("seq", "worker", "n", "at_us", "day", *_PLAIN, "price", *AMOUNTS)


def count_calls(database: Database, period: Period) -> int:
    """How many lines there will be. Raises: ConfigurationError, StoreUnavailable."""
    where, values = period.days.condition()
    with database.reading() as transaction:
        check_version(transaction, database)
        ((number,),) = transaction.fetch(f"SELECT COUNT(*) FROM calls WHERE part = 0 AND {where}", values)
        return int(number)


def export(database: Database, period: Period) -> Iterator[dict[str, Any]]:
    """The calls in the order in which they came here. Amounts are texts, None where they are not known.

    Raises: ConfigurationError, StoreUnavailable.
    """
    where, values = period.days.condition()
    select = f"SELECT {quoted(_READ)} FROM calls WHERE part = 0 AND seq > ? AND {where} ORDER BY seq LIMIT {_PAGE}"
    with database.reading() as transaction:
        check_version(transaction, database)
    seq = 0
    while True:
        with database.reading() as transaction:
            page = list(transaction.fetch(select, (seq, *values)))
            if not page:
                return
            first, seq = page[0][0], page[-1][0]
            further = _further_parts(transaction, first, seq)
        for row in page:
            yield _line(row, further.get(row[1:3], []))


def _further_parts(transaction: Transaction, first: int, last: int) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """Amounts of what was charged later for the calls of a page."""
    amounts = ", ".join(f'parts."{name}"' for name in AMOUNTS)
    found = transaction.fetch(
        f"SELECT parts.worker, parts.n, {amounts} FROM calls JOIN calls AS parts "
        "ON parts.worker = calls.worker AND parts.n = calls.n AND parts.part > 0 "
        "WHERE calls.part = 0 AND calls.seq >= ? AND calls.seq <= ?",
        (first, last),
    )
    parts: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for worker, n, *values in found:
        parts.setdefault((worker, n), []).append(tuple(values))
    return parts


def _line(row: tuple[Any, ...], further: list[tuple[Any, ...]]) -> dict[str, Any]:
    read = dict(zip(_READ, row, strict=True))
    at = datetime.fromtimestamp(read["at_us"] // 10**6, UTC).replace(microsecond=read["at_us"] % 10**6)
    line: dict[str, Any] = {
        "at": at.isoformat().replace("+00:00", "Z"),
        "day": day_text(read["day"]),
        **{name: read[name] for name in (*_PLAIN, "price")},
    }
    for name in _BOOLEANS:
        # SQLite has numbers only.
        line[name] = None if line[name] is None else bool(line[name])
    sums: dict[str, int | None] = {}
    for place, name in enumerate(AMOUNTS):
        amounts = [read[name], *(part[place] for part in further)]
        sums[name] = None if None in amounts else sum(amounts)
        line[f"{name.removesuffix('_cost')}_usd"] = usd_text(sums[name])
    saved = [sums[name] for name in SAVINGS]
    line["saved_usd"] = usd_text(None if None in saved else sum(filter(None, saved)))
    return line

"""Calls, the newest first: looked for by any column in slices, so that a search that finds nothing tells how far it
got instead of taking for ever; and one call with all that was charged for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

from backends.errors import InvalidRequest, UnknownPath
from gateway.dashboard.access import Scope
from gateway.dashboard.filters import Condition
from gateway.ledger.amounts import usd_text
from gateway.ledger.lookup import amounts_of, parts_of
from gateway.ledger.row import AMOUNTS, SAVINGS
from gateway.ledger.schema import quoted
from gateway.sql.database import Transaction

_SEARCH_S = 0.17
_FIRST_SLICE, _LEAST_SLICE = 4_000, 500
_FASTEST = 4
"""Times as many rows as in the slice before: what the first ones find in memory, later ones read from the disk."""
_MOST = 100
_SHOWN = (
    *("seq", "at_us", "request_id", "key", "tenant", "route", "backend", "model", "stream", "cache", "status", "error"),
    *("fault", "input_tokens", "output_tokens", "cost", "ttft_us", "total_us"),
)
_MAX_SEQ = 2**62


class _Search:
    """Rows downwards from before `upper` to `first`, for a moment, in slices that grow while there is time for them."""

    def __init__(self, first: int, upper: int) -> None:
        self.first = first
        self.upper = upper
        """All rows from here on have been looked at."""

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing left to look at."""
        return self.upper <= self.first

    def slices(self) -> Iterator[tuple[int, int]]:
        """From where, and to before where. None is begun that would not end in time, as far as those before it tell."""
        began_at = monotonic()
        until, size = began_at + _SEARCH_S, _FIRST_SLICE
        while not self.is_whole and size >= _LEAST_SLICE:
            lower = max(self.upper - size, self.first)
            yield lower, self.upper
            self.upper = lower
            now = monotonic()
            rows_a_second = size / max(now - began_at, 1e-6)
            began_at, size = now, min(_FASTEST * size, int(rows_a_second * (until - now)))

    def searched_to(self, transaction: Transaction) -> float | None:
        """When the oldest call that was looked at came, in wall seconds; None where all were."""
        if self.is_whole:
            return None
        found = transaction.fetch("SELECT at_us FROM calls WHERE seq = ?", (self.upper,))
        return next((at_us / 1e6 for (at_us,) in found), None)


def page(
    transaction: Transaction, scope: Scope, wanted: Condition, *, before: int | None = None, after: int | None = None
) -> dict[str, Any]:
    """The newest before one call, or of those after one. `next`: go on before that one; None at the end."""
    first, last = _ends(transaction)
    upper = last + 1 if before is None else min(before, last + 1)
    lowest = first if after is None else max(after + 1, first)
    rows: list[tuple[Any, ...]] = []
    search = _Search(lowest, upper)
    for within in search.slices():
        rows += _rows(transaction, scope, wanted, within, _MOST - len(rows))
        if len(rows) >= _MOST:
            search.upper = rows[-1][0]
            break
    return {
        "rows": [_shown(row) for row in rows],
        "next": None if search.is_whole else search.upper,
        "newest": last,
        "searched_to": search.searched_to(transaction),
    }


def _ends(transaction: Transaction) -> tuple[int, int]:
    """The first row and the last. Asked for both at once, SQLite would look at every row."""
    first, last = "(SELECT MIN(seq) FROM calls)", "(SELECT MAX(seq) FROM calls)"
    ((begin, end),) = transaction.fetch(f"SELECT COALESCE({first}, 1), COALESCE({last}, 0)")
    return begin, end


def _rows(
    transaction: Transaction, scope: Scope, wanted: Condition, within: tuple[int, int], most: int
) -> Iterator[tuple[Any, ...]]:
    own = "1 = 1" if scope.tenant is None else "tenant = ?"
    values = () if scope.tenant is None else (scope.tenant,)
    return transaction.fetch(
        f"SELECT {quoted(_SHOWN)} FROM calls WHERE seq >= ? AND seq < ? AND part = 0 AND {own} AND {wanted.sql} "
        "ORDER BY seq DESC LIMIT ?",
        (*within, *values, *wanted.values, most),
    )


def _shown(row: tuple[Any, ...]) -> dict[str, Any]:
    call = dict(zip(_SHOWN, row, strict=True))
    return {**call, "cost": usd_text(call["cost"]), "stream": bool(call["stream"])}


def one(transaction: Transaction, scope: Scope, seq: int) -> dict[str, Any]:
    """A call and its parts. Raises: UnknownPath where there is none that may be seen."""
    if not 0 < seq < _MAX_SEQ:
        raise InvalidRequest("a call's number is a whole number")
    own = "" if scope.tenant is None else " AND tenant = ?"
    values = () if scope.tenant is None else (scope.tenant,)
    found = list(transaction.fetch(f"SELECT worker, n FROM calls WHERE seq = ?{own}", (seq, *values)))
    if not found:
        raise UnknownPath("there is no such call any more")
    parts = parts_of(transaction, *found[0])
    amounts = amounts_of(parts)
    return {
        "call": {**parts[0], **{name: usd_text(parts[0][name]) for name in AMOUNTS}},
        "parts": [{**part, **{name: usd_text(part[name]) for name in AMOUNTS}} for part in parts],
        "cost": usd_text(amounts["cost"]),
        "saved": {name.removeprefix("saved_"): usd_text(amounts[name]) for name in SAVINGS},
    }


def failures(transaction: Transaction, scope: Scope, since_us: int) -> dict[str, Any]:
    """What has failed since then, in kinds: how often, since when, and the last call of each. The newest first, as far
    as a moment's search gets.
    """
    first, last = _ends(transaction)
    own = "1 = 1" if scope.tenant is None else "tenant = ?"
    values = () if scope.tenant is None else (scope.tenant,)
    kinds: dict[tuple[Any, ...], list[int]] = {}
    search = _Search(first, last + 1)
    is_done = False
    for lower, upper in search.slices():
        found = transaction.fetch(
            "SELECT fault, error, status, route, backend, COUNT(*), MIN(at_us), MAX(at_us), MAX(seq) FROM calls "
            f"WHERE seq >= ? AND seq < ? AND part = 0 AND fault <> '' AND at_us >= ? AND {own} "
            "GROUP BY fault, error, status, route, backend",
            (lower, upper, since_us, *values),
        )
        for *kind, count, begin, end, seq in found:
            known = kinds.setdefault(tuple(kind), [0, begin, end, seq])
            known[0] += count
            known[1] = min(known[1], begin)
        ((oldest,),) = transaction.fetch("SELECT MIN(at_us) FROM calls WHERE seq >= ? AND seq < ?", (lower, upper))
        is_done = oldest is not None and oldest < since_us
        if is_done:
            break
    names = ("fault", "error", "status", "route", "backend")
    rows = [
        {**dict(zip(names, kind, strict=True)), "count": n, "first": begin / 1e6, "last": end / 1e6, "seq": seq}
        for kind, (n, begin, end, seq) in kinds.items()
    ]
    return {
        "rows": sorted(rows, key=lambda row: -int(row["count"])),
        "searched_to": None if is_done else search.searched_to(transaction),
    }

"""Raises of budgets, beside the keys in their database. None is ever changed or deleted: they are the trail of who
raised what, when and why. Of several for the same the latest counts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backends.clock import Clock
from gateway.sql.database import Database
from policies.limits.raises import Raise

TABLES = (
    "CREATE TABLE IF NOT EXISTS budget_raises (id BIGINT PRIMARY KEY, budget TEXT NOT NULL, who TEXT NOT NULL, "
    "amount BIGINT NOT NULL, ends_at DOUBLE PRECISION NOT NULL, why TEXT NOT NULL, made_by TEXT NOT NULL, "
    "made_at DOUBLE PRECISION NOT NULL)",
    "CREATE INDEX IF NOT EXISTS budget_raises_by_budget ON budget_raises (budget, who, id)",
)
_COLUMNS = "id, budget, who, amount, ends_at, why, made_by, made_at"
_INSERT = f"INSERT INTO budget_raises ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_REPLACED_BY = (
    "(SELECT MIN(later.id) FROM budget_raises later "
    "WHERE later.budget = raised.budget AND later.who = raised.who AND later.id > raised.id)"
)
_KEPT_S = 86400.0
"""So long one that seems over is still read, in case a clock is ahead and set right again."""


class AskedRaise(msgspec.Struct, frozen=True):
    """What somebody asks for: pico-dollars on top of a budget until then, in place of those before."""

    budget: str
    who: str
    amount: int
    ends_at: float
    why: str


class StoredRaise(msgspec.Struct, frozen=True):
    """One of the trail."""

    id: int
    asked: AskedRaise
    made_by: str
    made_at: float
    replaced_by: int | None = None
    """The next one for the same."""

    def status(self, now: float) -> str:
        """Whether it counts: `in_force`, `replaced` or `over`."""
        if self.replaced_by is not None:
            return "replaced"
        return "in_force" if self.asked.ends_at > now else "over"


class RaiseStore:
    """Of one thread. Each method raises StoreUnavailable where the database is away."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def add(self, asked: AskedRaise, made_by: str) -> StoredRaise:
        """It counts from now on."""
        with self._database.writing() as transaction:
            # Who writes is alone, so numbers are in the order of commits.
            ((last,),) = transaction.fetch("SELECT MAX(id) FROM budget_raises")
            made = StoredRaise((last or 0) + 1, asked, made_by, self._clock.wall())
            values = (*msgspec.structs.astuple(asked), made_by, made.made_at)
            transaction.execute(_INSERT, (made.id, *values))
        return made

    def last(self) -> tuple[int, float] | None:
        """The number of the latest one, and when it was made: a backup that is put back may get another of that number.
        None where there is none.
        """
        with self._database.reading() as transaction:
            return next(transaction.fetch("SELECT id, made_at FROM budget_raises ORDER BY id DESC LIMIT 1"), None)

    def in_force(self) -> dict[tuple[str, str], Raise]:
        """The latest for each, as calls look them up."""
        latest = f"ends_at > ? AND {_REPLACED_BY} IS NULL"
        sql = f"SELECT budget, who, amount, ends_at FROM budget_raises raised WHERE {latest}"
        with self._database.reading() as transaction:
            rows = transaction.fetch(sql, (self._clock.wall() - _KEPT_S,))
            return {(budget, who): Raise(amount, ends_at) for budget, who, amount, ends_at in rows}

    def page(self, limit: int, *, before: int | None = None) -> list[StoredRaise]:
        """The latest first, those older than that number."""
        sql = f"SELECT {_COLUMNS}, {_REPLACED_BY} FROM budget_raises raised WHERE id < ? ORDER BY id DESC LIMIT ?"
        with self._database.reading() as transaction:
            return [_of_row(row) for row in transaction.fetch(sql, (2**62 if before is None else before, limit))]


def _of_row(row: tuple[Any, ...]) -> StoredRaise:
    number, budget, who, amount, ends_at, why, made_by, made_at, replaced_by = row
    return StoredRaise(number, AskedRaise(budget, who, amount, ends_at, why), made_by, made_at, replaced_by)

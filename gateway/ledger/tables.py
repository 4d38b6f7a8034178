"""Brings the tables of a ledger up to date: what is not there is made, and columns that a table lacks are added.

So there is no list of versions to go through, and gateways of the version before go on writing beside this one: every
column that they do not know has a value of its own. The number in `settings` differs only where they would do harm, as
where sums are told apart by more: what they write waits in their journals then until they are of this version too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.ledger import latencies, samples
from gateway.ledger.row import AMOUNTS, COLUMNS, TEXTS
from gateway.ledger.schema import ROLLUPS, quoted
from gateway.sql.database import Transaction

VERSION = 2
ROLLED_UP = "rolled_up"
"""The mark of the sums."""
SESSION_SECRET = "session_secret"
"""The setting with which cookies of the dashboard are sealed, by all gateways of a ledger alike."""
MADE_UP = "made_up"
"""The setting of a ledger whose rows nobody has asked for in earnest."""

_BOOLEANS = frozenset({"stream", "estimated", "in_slo"})
_TEXT = "TEXT NOT NULL DEFAULT ''"
_SETTINGS = "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)"


class Table(NamedTuple):
    """How a table should be."""

    name: str
    columns: dict[str, str]
    """With their types."""
    unique: tuple[str, ...]

    def create(self) -> str:
        """Makes it."""
        columns = ", ".join(f'"{name}" {kind}' for name, kind in self.columns.items())
        return f"CREATE TABLE {self.name} ({columns}, UNIQUE ({quoted(self.unique)}))"

    def tell_apart_by_more(self, transaction: Transaction, present: Iterable[str]) -> None:
        """Make it anew with what was in it; in a column that is new its rows so far have nothing."""
        before, kept = f"{self.name}_before", quoted(present)
        transaction.execute(f"ALTER TABLE {self.name} RENAME TO {before}")
        transaction.execute(self.create())
        transaction.execute(f"INSERT INTO {self.name} ({kept}) SELECT {kept} FROM {before}")
        transaction.execute(f"DROP TABLE {before}")

    def lacks(self, transaction: Transaction) -> list[str]:
        """Which columns it has not; all of them where it is not there."""
        present = set(transaction.columns(self.name))
        return [name for name in self.columns if name not in present]


def read_settings(transaction: Transaction) -> dict[str, str]:
    """The version, and the time zone of the days."""
    return dict(transaction.fetch("SELECT name, value FROM settings"))


def make_settings(transaction: Transaction) -> None:
    """Have a place for them, before all others."""
    transaction.execute(_SETTINGS)


def bring_up_to_date(transaction: Transaction, seq: str) -> None:
    """Make and add what is lacking; `seq` is the type of a number that only ever grows."""
    made = set()
    for table in _tables(seq):
        lacking = table.lacks(transaction)
        if len(lacking) == len(table.columns):
            transaction.execute(table.create())
            made.add(table.name)
        elif not set(table.unique).isdisjoint(lacking):
            table.tell_apart_by_more(transaction, table.columns.keys() - lacking)
        else:
            for name in lacking:
                transaction.execute(f'ALTER TABLE {table.name} ADD COLUMN "{name}" {table.columns[name]}')
    for counts in latencies.COUNTS:
        if counts.table in made and (statement := latencies.fill(counts)) is not None:
            transaction.execute(statement)
    transaction.execute("CREATE INDEX IF NOT EXISTS calls_by_time ON calls (at_us)")
    # Nothing is to be done for the numbers of rows that are gone.
    begin = "SELECT ?, COALESCE(MIN(seq) - 1, 0) FROM calls WHERE 1 = 1 ON CONFLICT DO NOTHING"
    for mark in (ROLLED_UP, latencies.MARK):
        transaction.execute(f"INSERT INTO marks (name, value) {begin}", (mark,))


def is_up_to_date(transaction: Transaction, seq: str) -> bool:
    """Whether it is a ledger that this version can read."""
    if not transaction.columns("settings"):
        return False
    is_of_version = read_settings(transaction).get("version") == str(VERSION)
    return is_of_version and not any(table.lacks(transaction) for table in _tables(seq))


def _tables(seq: str) -> tuple[Table, ...]:
    calls = {"seq": seq, **{name: _column(name) for name in COLUMNS}}
    sums = [
        Table(
            rollup.table,
            {
                **{key: "INTEGER NOT NULL" if key == rollup.time else _TEXT for key in rollup.keys},
                **dict.fromkeys(rollup.sums, "BIGINT NOT NULL DEFAULT 0"),
            },
            rollup.keys,
        )
        for rollup in ROLLUPS
    ]
    return (
        Table("calls", calls, ("worker", "n", "part")),
        *sums,
        *(Table(counts.table, counts.columns(), counts.keys) for counts in latencies.COUNTS),
        Table(samples.TABLE, samples.COLUMNS, samples.KEYS),
        Table("marks", {"name": "TEXT NOT NULL", "value": "BIGINT NOT NULL"}, ("name",)),
    )


def _column(name: str) -> str:
    if name in TEXTS:
        return _TEXT
    if name in _BOOLEANS:
        return f"BOOLEAN{'' if name == 'in_slo' else ' NOT NULL DEFAULT FALSE'}"
    may_be_unknown = name in AMOUNTS or name in ("ttft_us", "tpot_us", "queue_us", "sent_us")
    return f"BIGINT{'' if may_be_unknown else ' NOT NULL DEFAULT 0'}"

"""The rows and their sums in a database: each row once, each added to the sums once, the old ones taken away.

The mark says up to which row the sums go. It moves in the transaction that adds to them, so whatever happens in between
is of no matter, and a row that comes late is added like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import itemgetter
from secrets import token_hex

from backends.errors import ConfigurationError
from gateway.ledger import latencies, samples
from gateway.ledger.row import COLUMNS, Stored
from gateway.ledger.schema import GROUPINGS, INSERT_COLUMNS, ROLLUPS
from gateway.ledger.tables import ROLLED_UP, SESSION_SECRET, VERSION, bring_up_to_date, make_settings, read_settings
from gateway.sql.database import Database, Purpose, RowRefused, Transaction

LEDGER = Purpose("ledger", "ledger.url", 0x534C4C47)
"""What its database is for."""

_PRUNED_AT_ONCE = 5000
_at_us = itemgetter(COLUMNS.index("at_us"))


class LedgerStore:
    """Of one thread. Each method raises StoreUnavailable where the database is away."""

    def __init__(self, database: Database, time_zone: str) -> None:
        self._database = database
        self._time_zone = time_zone

    def open(self) -> None:
        """Bring the tables up to date. Raises: ConfigurationError where they are somebody else's, or of other days."""
        with self._database.writing() as transaction:
            make_settings(transaction)
            found = read_settings(transaction)
            if int(found.get("version", VERSION)) > VERSION:
                raise ConfigurationError("the ledger was written by a newer version of the gateway")
            zone = found.get("time_zone", self._time_zone)
            if zone != self._time_zone:
                raise ConfigurationError(
                    f"the days of this ledger are those of {zone}, and ledger.time_zone is {self._time_zone}: change "
                    "it back, or begin another ledger"
                )
            bring_up_to_date(transaction, self._database.seq)
            for setting in (("version", str(VERSION)), ("time_zone", zone), (SESSION_SECRET, token_hex(32))):
                transaction.execute("INSERT INTO settings VALUES (?, ?) ON CONFLICT DO NOTHING", setting)

    def insert(self, rows: Sequence[Stored]) -> tuple[int, int]:
        """Add those that are not there yet: how many these were, and how many the database does not take."""
        # `seq` and the index by time grow at their ends.
        rows = sorted(rows, key=_at_us)
        try:
            with self._database.writing() as transaction:
                return transaction.insert("calls", INSERT_COLUMNS, rows), 0
        except RowRefused:
            return self._insert_each(rows)

    def roll_up(self, most: int) -> int:
        """Add the next rows to the sums, at most so many: how many these were."""
        with self._database.writing() as transaction:
            mark, newest = mark_and_newest(transaction)
            upto = min(newest, mark + most)
            if upto > mark:
                for grouping in GROUPINGS:
                    transaction.execute(grouping.create(mark, upto))
                for rollup in ROLLUPS:
                    transaction.execute(rollup.add)
                for grouping in GROUPINGS:
                    transaction.execute(f"DROP TABLE {grouping.table}")
                _move(transaction, ROLLED_UP, upto)
            return upto - mark

    def count_latencies(self, most: int) -> int:
        """Count how long the next rows took, at most so many: how many these were."""
        with self._database.writing() as transaction:
            mark, newest = mark_and_newest(transaction, latencies.MARK)
            upto = min(newest, mark + most)
            if upto > mark:
                for statement in latencies.add(mark, upto):
                    transaction.execute(statement)
                _move(transaction, latencies.MARK, upto)
            return upto - mark

    def keep_samples(self, new: Iterable[samples.GaugeSample]) -> None:
        """Keep how things stood in a minute."""
        with self._database.writing() as transaction:
            samples.keep(transaction, new)

    def prune(self, before_us: int, before_day: int) -> bool:
        """Take away rows of calls before then that are in the sums, and sums that are kept as long as rows. Whether
        there may be more.
        """
        with self._database.writing() as transaction:
            mark = min(mark_and_newest(transaction, name)[0] for name in (ROLLED_UP, latencies.MARK))
            old = "SELECT seq FROM calls WHERE at_us < ? AND seq <= ? LIMIT ?"
            pruned = transaction.execute(f"DELETE FROM calls WHERE seq IN ({old})", (before_us, mark, _PRUNED_AT_ONCE))
            if pruned == _PRUNED_AT_ONCE:
                return True
            for counts in latencies.COUNTS:
                transaction.execute(f"DELETE FROM {counts.table} WHERE day < ?", (before_day,))
            for rollup in ROLLUPS:
                if rollup.time == "hour":
                    transaction.execute(f"DELETE FROM {rollup.table} WHERE hour < ?", (before_us // 3_600_000_000,))
                elif rollup.table != "by_day":
                    transaction.execute(f"DELETE FROM {rollup.table} WHERE day < ?", (before_day,))
            return False

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def _insert_each(self, rows: Sequence[Stored]) -> tuple[int, int]:
        num_new = num_refused = 0
        for row in rows:
            added = 0
            is_taken = False
            for attempt in (row, _plain(row)):
                with suppress(RowRefused):
                    with self._database.writing() as transaction:
                        added = transaction.insert("calls", INSERT_COLUMNS, [attempt])
                    is_taken = True
                    break
            num_new += added
            num_refused += not is_taken
        return num_new, num_refused


def mark_and_newest(transaction: Transaction, name: str = ROLLED_UP) -> tuple[int, int]:
    """Up to which row the sums go, or what else has such a mark, and the last row that there is."""
    ((mark,),) = transaction.fetch("SELECT value FROM marks WHERE name = ?", (name,))
    ((newest,),) = transaction.fetch("SELECT MAX(seq) FROM calls")
    return mark, newest or mark


def _move(transaction: Transaction, mark: str, upto: int) -> None:
    transaction.execute("UPDATE marks SET value = ? WHERE name = ?", (upto, mark))


def _plain(row: Stored) -> Stored:
    """Its texts without what a database may not take."""
    return [
        value.replace("\0", "\ufffd").encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for value in row
    ]

"""The rows and their sums in a database: each row once, each added to the sums once, the old ones taken away.

The mark says up to which row the sums go. It moves in the transaction that adds to them, so whatever happens in between
is of no matter, and a row that comes late is added like any other. Where all rows behind the mark are those that this
store has put there itself, they are added up as it still has them: the database need not look at them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import itemgetter
from secrets import token_hex

from backends.errors import ConfigurationError
from gateway.ledger import latencies, samples
from gateway.ledger.row import COLUMNS, Stored
from gateway.ledger.schema import GROUPINGS, INSERT_COLUMNS, ROLLUPS, RowsAtHand
from gateway.ledger.tables import ROLLED_UP, SESSION_SECRET, VERSION, bring_up_to_date, make_settings, read_settings
from gateway.sql.database import Database, Purpose, RowRefused, Transaction

LEDGER = Purpose("ledger", "ledger.url", 0x534C4C47)
"""What its database is for."""

_PRUNED_AT_ONCE = 5000
_MOST_AT_HAND = 3000
"""Rows, of about 2 KB each."""
_at_us = itemgetter(COLUMNS.index("at_us"))


class _Stretch:
    """Rows of the database, one behind the other, that came over one connection: behind `after` and up to `upto`."""

    def __init__(self) -> None:
        self._connection = self.after = self.upto = 0

    def begin(self, connection: int, after: int) -> None:
        """It has none, and those go on with it that come next."""
        self._connection = connection
        self.after = self.upto = after

    def goes_on(self, connection: int, after: int, upto: int) -> bool:
        """Whether these follow, which it has then too; else it has only these."""
        follows = (connection, after) == (self._connection, self.upto)
        if not follows:
            self.begin(connection, after)
        self.upto = upto
        return follows

    def is_behind(self, connection: int, mark: int) -> bool:
        """Whether it has any, and begins just behind that mark."""
        return (connection, mark) == (self._connection, self.after) and self.upto > mark


class LedgerStore:
    """Of one thread. Each method raises StoreUnavailable where the database is away."""

    def __init__(self, database: Database, time_zone: str) -> None:
        self._database = database
        self._time_zone = time_zone
        self._at_hand: list[Stored] = []
        """Rows that are in the database and not in its sums: those of `_new`."""
        self._new = _Stretch()
        self._counted: Counter[latencies.Counted] = Counter()
        """The counts, not yet in the database, of the rows of `_timed`."""
        self._timed = _Stretch()
        self._num_timed = 0
        """How many of the rows at hand are counted there."""

    @property
    def has_enough(self) -> bool:
        """Whether it has as many rows at hand as it keeps: to be added up."""
        return len(self._at_hand) >= _MOST_AT_HAND

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
            transaction.execute("UPDATE settings SET value = ? WHERE name = 'version'", (str(VERSION),))

    def insert(self, rows: Sequence[Stored]) -> tuple[int, int]:
        """Add those that are not there yet: how many these were, and how many the database does not take."""
        # `seq` and the index by time grow at their ends.
        rows = sorted(rows, key=_at_us)
        try:
            with self._database.writing() as transaction:
                num_new = transaction.insert("calls", INSERT_COLUMNS, rows)
                are_kept = self._database.is_in_process and num_new == len(rows)
                newest = mark_and_newest(transaction)[1] if are_kept else 0
        except RowRefused:
            return self._insert_each(rows)
        if are_kept:
            self._keep(rows, newest)
        return num_new, 0

    def roll_up(self, most: int) -> int:
        """Add the next rows to the sums, at most so many if these are not at hand: how many these were."""
        with self._database.writing() as transaction:
            mark, newest = mark_and_newest(transaction)
            are_at_hand = self._new.is_behind(self._database.num_connected, mark)
            upto = self._new.upto if are_at_hand else min(newest, mark + most)
            rows = RowsAtHand(self._at_hand) if are_at_hand else None
            if upto > mark:
                if rows is not None:
                    _add_at_hand(transaction, rows)
                else:
                    _add_up(transaction, mark, upto)
                _move(transaction, ROLLED_UP, upto)
        if rows is not None:
            self._time_at_hand(rows)
        if upto >= self._new.upto:
            self._forget(upto)
        return upto - mark

    def count_latencies(self, most: int) -> int:
        """Count how long the next rows took, at most so many if these are not at hand: how many these were."""
        self._time_at_hand()
        with self._database.writing() as transaction:
            mark, newest = mark_and_newest(transaction, latencies.MARK)
            are_counted = self._timed.is_behind(self._database.num_connected, mark)
            upto = self._timed.upto if are_counted else min(newest, mark + most)
            if upto > mark:
                if are_counted:
                    for counts in latencies.COUNTS:
                        _execute_each(transaction, *counts.add_counted(self._counted))
                else:
                    for statement in latencies.add(mark, upto):
                        transaction.execute(statement)
                _move(transaction, latencies.MARK, upto)
        if upto >= self._timed.upto:
            self._counted.clear()
            self._timed.begin(self._database.num_connected, upto)
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

    def _keep(self, rows: list[Stored], newest: int) -> None:
        """They are the newest of the database, and their numbers follow each other."""
        follows = self._new.goes_on(self._database.num_connected, newest - len(rows), newest)
        if not follows or len(self._at_hand) >= 2 * _MOST_AT_HAND:
            self._forget(newest - len(rows))
            self._new.upto = newest
        self._at_hand += rows

    def _forget(self, upto: int) -> None:
        """Have none of those up to there: the next ones are those behind it."""
        self._at_hand.clear()
        self._num_timed = 0
        self._new.begin(self._database.num_connected, upto)

    def _time_at_hand(self, all_of_them: RowsAtHand | None = None) -> None:
        """Count how long those took that are not counted yet."""
        number = len(self._at_hand) - self._num_timed
        if number:
            upto = self._new.upto
            if not self._timed.goes_on(self._database.num_connected, upto - number, upto):
                self._counted.clear()
            rows = all_of_them if not self._num_timed else None
            self._counted.update(latencies.count((rows or RowsAtHand(self._at_hand[-number:])).columns))
            self._num_timed += number

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


def _add_up(transaction: Transaction, after: int, upto: int) -> None:
    for grouping in GROUPINGS:
        transaction.execute(grouping.create(after, upto))
    for rollup in ROLLUPS:
        transaction.execute(rollup.add)
    for grouping in GROUPINGS:
        transaction.execute(f"DROP TABLE {grouping.table}")


def _add_at_hand(transaction: Transaction, rows: RowsAtHand) -> None:
    groups = {grouping.table: grouping.groups(rows) for grouping in GROUPINGS}
    for rollup in ROLLUPS:
        _execute_each(transaction, *rollup.add_groups(groups[rollup.grouping.table]))


def _execute_each(transaction: Transaction, statement: str, values: Iterable[Sequence[object]]) -> None:
    for each in values:
        transaction.execute(statement, each)


def _move(transaction: Transaction, mark: str, upto: int) -> None:
    transaction.execute("UPDATE marks SET value = ? WHERE name = ?", (upto, mark))


def _plain(row: Stored) -> Stored:
    """Its texts without what a database may not take."""
    return [
        value.replace("\0", "\ufffd").encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for value in row
    ]

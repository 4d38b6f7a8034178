"""The rows and their sums in a database: each row once, each added to the sums once, the old ones taken away.

The mark says up to which row the sums go. It moves in the transaction that adds to them, so whatever happens in between
is of no matter, and a row that comes late is added like any other. Rows are grouped as they are put there: where all
that are behind the mark came from this store, it has their sums at hand, and the database need not look at them again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from backends.errors import ConfigurationError
from gateway.ledger import latencies, samples
from gateway.ledger.row import Stored
from gateway.ledger.schema import GROUPINGS, INSERT_COLUMNS, ROLLUPS, Groups, RowsByColumn
from gateway.ledger.tables import ROLLED_UP, SESSION_SECRET, VERSION, bring_up_to_date, make_settings, read_settings
from gateway.sql.database import Database, Purpose, RowRefused, Transaction

LEDGER = Purpose("ledger", "ledger.url", 0x534C4C47)
"""What its database is for."""

_PRUNED_AT_ONCE = 5000
_MOST_AT_HAND = 3000
"""Rows of which the sums are at hand: two groups of each at most, of about 1 KB."""
_MOST_COUNTS = 20_000
"""Of about 300 bytes."""


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

    @property
    def number(self) -> int:
        """How many it has."""
        return self.upto - self.after

    def is_behind(self, connection: int, mark: int) -> bool:
        """Whether it has any, and begins just behind that mark."""
        return (connection, mark) == (self._connection, self.after) and self.upto > mark


class LedgerStore:
    """Of one thread. Each method raises StoreUnavailable where the database is away."""

    def __init__(self, database: Database, time_zone: str) -> None:
        self._database = database
        self._time_zone = time_zone
        self._groups: dict[str, Groups] = {grouping.table: defaultdict(dict) for grouping in GROUPINGS}
        """By grouping the sums, not yet in the database, of the rows of `_new`."""
        self._new = _Stretch()
        self._counted: Counter[latencies.Counted] = Counter()
        """The counts, not yet in the database, of the rows of `_timed`."""
        self._timed = _Stretch()

    @property
    def has_enough(self) -> bool:
        """Whether it has the sums of as many rows at hand as it keeps: to be added up."""
        return self._new.number >= _MOST_AT_HAND

    @property
    def has_many_counts(self) -> bool:
        """Whether it has as many counts at hand as it keeps: names that clients invent may be new in each row."""
        return len(self._counted) >= _MOST_COUNTS

    def place(self, seen_from: Path) -> str:
        """Which ledger it is, as `Database.place`."""
        return self._database.place(seen_from)

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
        # One by one takes a hundred times as long, and a caller can have a text in each that a database does not take.
        for batch in (rows, map(_plain, rows)):
            with suppress(RowRefused):
                return self._insert(RowsByColumn(batch)), 0
        return self._insert_each(rows)

    def roll_up(self, most: int) -> int:
        """Add the next rows to the sums, at most so many if these are not at hand: how many these were."""
        with self._database.writing() as transaction:
            mark, newest = mark_and_newest(transaction)
            are_at_hand = self._new.is_behind(self._database.num_connected, mark)
            upto = self._new.upto if are_at_hand else min(newest, mark + most)
            if upto > mark:
                if are_at_hand:
                    self._add_at_hand(transaction)
                else:
                    _add_up(transaction, mark, upto)
                _move(transaction, ROLLED_UP, upto)
        if upto >= self._new.upto:
            self._forget(upto)
        return upto - mark

    def count_latencies(self, most: int) -> int:
        """Count how long the next rows took, at most so many if these are not at hand: how many these were."""
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

    def forget_old_samples(self, minute: int) -> None:
        """Take away how things stood more than eight days before that minute."""
        with self._database.writing() as transaction:
            samples.forget_old(transaction, minute)

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

    def _insert(self, batch: RowsByColumn) -> int:
        """How many were new. Raises: RowRefused, and then none is there."""
        with self._database.writing() as transaction:
            num_new = transaction.insert("calls", INSERT_COLUMNS, batch.stored())
            are_all_new = self._database.is_in_process and num_new == batch.number
            newest = mark_and_newest(transaction)[1] if are_all_new else 0
        if are_all_new:
            self._add_to_hand(batch, newest)
        return num_new

    def _add_to_hand(self, batch: RowsByColumn, newest: int) -> None:
        """They are the newest of the database, and their numbers follow each other."""
        after, connection = newest - batch.number, self._database.num_connected
        if not self._new.goes_on(connection, after, newest) or self._new.number > 2 * _MOST_AT_HAND:
            self._forget(after)
            self._new.upto = newest
        for grouping in GROUPINGS:
            grouping.add(batch, self._groups[grouping.table])
        if not self._timed.goes_on(connection, after, newest):
            self._counted.clear()
        self._counted.update(latencies.count(batch))

    def _forget(self, upto: int) -> None:
        """Have no sums of rows up to there: the next ones are those behind it."""
        for groups in self._groups.values():
            groups.clear()
        self._new.begin(self._database.num_connected, upto)

    def _add_at_hand(self, transaction: Transaction) -> None:
        for rollup in ROLLUPS:
            _execute_each(transaction, *rollup.add_groups(self._groups[rollup.grouping.table]))

    def _insert_each(self, rows: Iterable[Stored]) -> tuple[int, int]:
        num_new = num_refused = 0
        for row in map(_plain, rows):
            try:
                num_new += self._insert(RowsByColumn([row]))
            except RowRefused:
                num_refused += 1
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


def _execute_each(transaction: Transaction, statement: str, values: Iterable[Sequence[object]]) -> None:
    for each in values:
        transaction.execute(statement, each)


def _move(transaction: Transaction, mark: str, upto: int) -> None:
    transaction.execute("UPDATE marks SET value = ? WHERE name = ?", (upto, mark))


def _plain(row: Stored) -> Stored:
    """Its texts without what a database may not take."""
    return tuple(
        value.replace("\0", "\ufffd").encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for value in row
    )

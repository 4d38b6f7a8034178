"""The ledger as questions meet it. What was read of steps that are over is kept, so that a page which asks anew costs
the step that goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from gateway.dashboard.ranges import day_of
from gateway.ledger.days import day_number
from gateway.ledger.percentiles import LatencyDimension, Spread, counted
from gateway.ledger.sums import Dimension, Line, Within, first_day, sums
from gateway.ledger.tables import SESSION_SECRET, read_settings
from gateway.sql.database import Transaction

_MOST_CELLS = 200_000
"""Figures that are kept, of all pages together: about 20 MB."""
_MOST_LOOKED_AT = 20_000
"""Rows that have come since a page has asked last; to look when these began takes a microsecond for each three."""

_Column = Literal["day", "hour", "minute"]
_By = Dimension | Literal["minute"]
_Table = dict[tuple[str, ...], dict[Any, int]]
"""Figures by what they are of: sums by their names, counts by where they begin."""
_Reader = Callable[[Sequence[str], Within], _Table]


class _Question(NamedTuple):
    what: Literal["sums", "counts"]
    column: _Column
    by: tuple[str, ...]
    only: tuple[tuple[str, str], ...]
    names: tuple[str, ...]


class _Piece(NamedTuple):
    question: _Question
    first: int
    last: int


class Memory:
    """Of one ledger, and of the one thread that asks it. What comes late to a step that is over is seen by its row."""

    def __init__(self) -> None:
        self._pieces: OrderedDict[_Piece, _Table] = OrderedDict()
        self.num_cells = 0
        self._newest = 0
        self._ledger = ""

    def catch_up(self, transaction: Transaction) -> int:
        """Forget what is not so any more: the steps of rows that have come since the last time, and what comes after
        them. The number of the newest row; 0 where there is none."""
        ledger = read_settings(transaction).get(SESSION_SECRET, "")
        ((newest,),) = transaction.fetch("SELECT COALESCE(MAX(seq), 0) FROM calls")
        last, self._newest = self._newest, newest
        if ledger != self._ledger or not last <= newest <= last + _MOST_LOOKED_AT:
            self._ledger = ledger
            self._forget(self._pieces)
        elif newest > last:
            since = "SELECT MIN(at_us) / 60000000, MIN(at_us) / 3600000000, MIN(day) FROM calls WHERE seq > ?"
            ((minute, hour, day),) = transaction.fetch(since, (last,))
            touched: dict[_Column, int] = {"minute": minute, "hour": hour, "day": day}
            self._forget(piece for piece in self._pieces if piece.last >= touched[piece.question.column])
        return int(newest)

    def find(self, piece: _Piece) -> _Table | None:
        """What is known of it."""
        table = self._pieces.get(piece)
        if table is not None:
            self._pieces.move_to_end(piece)
        return table

    def keep(self, piece: _Piece, table: _Table) -> _Table:
        """Know this from now on; what was not asked for the longest time gives way."""
        self._pieces[piece] = table
        self.num_cells += _num_cells(table)
        while self.num_cells > _MOST_CELLS:
            self._forget([next(iter(self._pieces))])
        return table

    def _forget(self, pieces: Iterable[_Piece]) -> None:
        for piece in list(pieces):
            self.num_cells -= _num_cells(self._pieces.pop(piece))


class Book:
    """The ledger in one transaction, at one moment; its days are those of `zone`."""

    def __init__(self, transaction: Transaction, memory: Memory, now_s: float, zone: str) -> None:
        self.transaction = transaction
        self.newest = memory.catch_up(transaction)
        self._memory = memory
        self._going_on: dict[_Column, int] = {
            "minute": int(now_s // 60),
            "hour": int(now_s // 3600),
            "day": day_number(day_of(now_s, zone)),
        }
        """The steps that are not over."""
        self._first_days: dict[str | None, int | None] = {}

    def first_day(self, tenant: str | None) -> int | None:
        """As `gateway.ledger.sums.first_day`."""
        if tenant not in self._first_days:
            self._first_days[tenant] = first_day(self.transaction, tenant)
        return self._first_days[tenant]

    def sums(
        self, by: Sequence[_By], within: Within, only: Mapping[Dimension, str], names: Sequence[str]
    ) -> list[Line]:
        """As `gateway.ledger.sums.sums`."""

        def read(by: Sequence[str], part: Within) -> _Table:
            lines = sums(self.transaction, cast(Sequence[_By], by), part, only, names)
            return {line.values: line.sums for line in lines}

        question = _Question("sums", within.column, tuple(by), tuple(only.items()), tuple(names))
        return [Line(values, found) for values, found in self._read(question, within, read)]

    def counted(
        self,
        by: Sequence[LatencyDimension | Literal["minute"]],
        within: Within,
        only: Mapping[LatencyDimension, str],
    ) -> list[Spread]:
        """As `gateway.ledger.percentiles.counted`."""

        def read(by: Sequence[str], part: Within) -> _Table:
            spreads = counted(self.transaction, cast(Sequence[LatencyDimension], by), part, only)
            return {(*spread.values, spread.measure): dict(spread.counts) for spread in spreads}

        question = _Question("counts", within.column, tuple(by), tuple(only.items()), ())
        return [
            Spread(tuple(values), measure, tuple(sorted(counts.items())))
            for (*values, measure), counts in self._read(question, within, read)
        ]

    def _read(self, question: _Question, within: Within, read: _Reader) -> list[tuple[tuple[str, ...], dict[Any, int]]]:
        first, last = within.first, within.last
        assert first is not None, "pages look at spans that begin"
        assert last is not None, "and end"
        last_over = min(last, self._going_on[within.column] - 1)
        if within.column == "minute":
            tables = self._by_minute(question, range(first, last + 1), last_over, read)
        else:
            tables = []
            if first <= last_over:
                piece = _Piece(question, first, last_over)
                known = self._memory.find(piece)
                if known is None:
                    known = self._memory.keep(piece, read(question.by, Within(within.column, first, last_over)))
                tables.append(known)
            if last_over < last:
                tables.append(read(question.by, Within(within.column, max(first, last_over + 1), last)))
        return sorted(_together(tables).items())

    def _by_minute(self, question: _Question, minutes: range, last_over: int, read: _Reader) -> list[_Table]:
        """An hour moves on by the minute, so each one is kept for itself. Calls come when they are over, so it is the
        last ones that change: all from the first one that is not known are read."""
        tables = []
        begin = minutes.start
        while begin <= last_over and (known := self._memory.find(_Piece(question, begin, begin))) is not None:
            tables.append(known)
            begin += 1
        is_told = "minute" in question.by
        by = question.by if is_told else ("minute", *question.by)
        place = by.index("minute")
        fresh: dict[int, _Table] = {minute: {} for minute in range(begin, minutes.stop)}
        if fresh:
            for values, figures in read(by, Within("minute", begin, minutes.stop - 1)).items():
                fresh[int(values[place])][values if is_told else values[1:]] = figures
        for minute, table in fresh.items():
            tables.append(table if minute > last_over else self._memory.keep(_Piece(question, minute, minute), table))
        return tables


def _together(tables: Sequence[_Table]) -> _Table:
    if len(tables) == 1:
        return tables[0]
    together: _Table = {}
    for table in tables:
        for values, figures in table.items():
            known = together.get(values)
            if known is None:
                together[values] = dict(figures)
            else:
                for name, figure in figures.items():
                    known[name] = known.get(name, 0) + figure
    return together


def _num_cells(table: _Table) -> int:
    return 1 + sum(map(len, table.values()))

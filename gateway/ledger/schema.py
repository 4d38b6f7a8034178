"""What the rows of a ledger add up to: as SQL that SQLite and PostgreSQL both take, and of rows at hand.

Four tables of sums stand beside the rows: by hour and by day for what has few values, by user and by session for what
has many, so that none is as long as the rows. To group rows costs more than to add them up, so new rows are grouped
twice, and each group feeds two tables. A sum of an amount is two numbers, whole micro-dollars and the pico-dollars
over, for a sum of pico-dollars has no room in 64 bits beyond 9.2 million dollars.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import add, itemgetter
from typing import Any, NamedTuple, TypeAlias

from gateway.ledger.row import AMOUNTS, COLUMNS, SAVINGS, TOKENS, Stored

_HOUR_US = 3600 * 10**6
PICO_PER_MICRO = 10**6


def quoted(names: Iterable[str]) -> str:
    """Names of columns, some of which are words of SQL, behind each other."""
    return ", ".join(f'"{name}"' for name in names)


def _amount(name: str, of: str, some: str = "") -> dict[str, str]:
    return {
        f"{name}_micro": f"COALESCE(SUM({of} / {PICO_PER_MICRO}){some}, 0)",
        f"{name}_pico": f"COALESCE(SUM({of} % {PICO_PER_MICRO}){some}, 0)",
    }


def _count(condition: str) -> str:
    return f"COUNT(*) FILTER (WHERE {condition})"


def _unless_0(name: str) -> str:
    """Most columns of most rows are 0: to look takes less than to add."""
    return f' FILTER (WHERE "{name}" <> 0)'


_COUNTS = {
    "charges": "COUNT(*)",
    "calls": _count("part = 0"),
    "errors": _count("part = 0 AND (status >= 400 OR error <> '')"),
    "estimated": _count('"estimated"'),
    "unknown": _count("cost IS NULL"),
    "saved_unknown": _count("saved_exact IS NULL"),
}
_CACHES = {
    "looked_up": _count("part = 0 AND cache IN ('hit', 'joined', 'semantic', 'miss')"),
    "hits": _count("part = 0 AND cache = 'hit'"),
    "joined": _count("part = 0 AND cache = 'joined'"),
    "semantic": _count("part = 0 AND cache = 'semantic'"),
}
"""Of the calls that met a cache, those that it answered."""
_FAULTS = {
    "failed_gateway": _count("part = 0 AND fault = 'gateway' AND error <> 'slo_shed'"),
    "failed_upstream": _count("part = 0 AND fault = 'upstream'"),
    "failed_client": _count("part = 0 AND fault = 'client'"),
    "turned_away": _count("part = 0 AND error = 'slo_shed'"),
}
_TOKENS = {name: f'COALESCE(SUM("{name}"){_unless_0(name)}, 0)' for name in TOKENS}
_AMOUNTS = {column: sql for name in AMOUNTS for column, sql in _amount(name, name, _unless_0(name)).items()}
_TIMES = {
    "total_us": 'SUM("total_us")',
    "ttft_us": 'COALESCE(SUM("ttft_us"), 0)',
    "ttft_calls": _count("ttft_us IS NOT NULL"),
    "slo_calls": _count("in_slo IS NOT NULL"),
    "slo_met": _count("in_slo"),
}
_SAVED = " + ".join(SAVINGS)
_BRIEF = {
    **_COUNTS,
    **{name: _TOKENS[name] for name in ("input_tokens", "cached_tokens", "output_tokens")},
    **_amount("cost", "cost"),
    **_amount("saved", f"({_SAVED})"),
}
_WHOLE = {**_BRIEF, **_TOKENS, **_AMOUNTS, **_TIMES, **_CACHES, **_FAULTS}


Groups: TypeAlias = Mapping[tuple[Any, ...], Sequence[int]]
"""Sums, by the values of what groups differ in."""


class Grouping(NamedTuple):
    """New rows in groups, a table that is gone at the end of the step that adds them up."""

    table: str
    keys: tuple[str, ...]
    """What tells most apart comes first, for the sake of the sorting."""
    sums: dict[str, str]

    def create(self, after: int, upto: int) -> str:
        """Makes it of the rows behind one `seq` and up to another one."""
        return f"CREATE TEMPORARY TABLE {self.table} AS " + _sums_of_rows(
            self.keys, self.sums, f"seq > {after:d} AND seq <= {upto:d}"
        )

    def groups(self, rows: RowsAtHand) -> Groups:
        """The same of rows at hand, which takes a third of what it takes SQLite."""
        places: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for place, values in enumerate(zip(*(rows.columns[name] for name in self.keys), strict=True)):
            places[values].append(place)
        return {values: rows.sums(self.sums, same) for values, same in places.items()}


class Rollup(NamedTuple):
    """A table of sums: a row for each combination of values that there was."""

    table: str
    time: str
    """The column that says when: `day`, or `hour` since the Unix epoch."""
    dimensions: tuple[str, ...]
    sums: dict[str, str]
    """What is added up, and how it is reckoned from rows."""
    grouping: Grouping
    """Where new rows come from."""

    @property
    def keys(self) -> tuple[str, ...]:
        """What its rows differ in."""
        return (self.time, *self.dimensions)

    def select(self, where: str) -> str:
        """The sums of rows, in the table's columns."""
        return _sums_of_rows(self.keys, self.sums, where)

    @property
    def add(self) -> str:
        """Adds what is in its grouping."""
        sums = ", ".join(f'SUM("{name}")' for name in self.sums)
        keys = quoted(self.keys)
        return self._raised(self.sums, f"SELECT {keys}, {sums} FROM {self.grouping.table} WHERE 1 = 1 GROUP BY {keys}")

    def add_groups(self, groups: Groups) -> tuple[str, list[tuple[Any, ...]]]:
        """Adds groups at hand: a statement, and the values of each time that it is to be executed."""
        keys_of = itemgetter(*map(self.grouping.keys.index, self.keys))
        found: dict[tuple[Any, ...], Sequence[int]] = {}
        for of_group, sums in groups.items():
            keys = keys_of(of_group)
            same = found.get(keys)
            found[keys] = sums if same is None else [*map(add, same, sums)]
        # Half of all sums are 0 wherever no call fails and none has pictures: these stay as they are.
        are_any = [any(each) for each in zip(*found.values(), strict=True)]
        names = list(compress(self.sums, are_any))
        marks = ", ".join("?" * (len(self.keys) + len(names)))
        values = [(*keys, *compress(sums, are_any)) for keys, sums in found.items()]
        return self._raised(names, f"VALUES ({marks})"), values

    def _raised(self, names: Iterable[str], values: str) -> str:
        names = tuple(names)
        raised = ", ".join(f'"{name}" = {self.table}."{name}" + excluded."{name}"' for name in names)
        return (
            f"INSERT INTO {self.table} ({quoted((*self.keys, *names))}) {values} "
            f"ON CONFLICT ({quoted(self.keys)}) DO UPDATE SET {raised}"
        )


def _sums_of_rows(keys: tuple[str, ...], sums: dict[str, str], where: str) -> str:
    hour = f"at_us / {_HOUR_US}"
    selected = [f"{hour} AS hour" if key == "hour" else f'"{key}"' for key in keys]
    selected += [f'{sql} AS "{name}"' for name, sql in sums.items()]
    groups = [hour if key == "hour" else f'"{key}"' for key in keys]
    return f"SELECT {', '.join(selected)} FROM calls WHERE {where} GROUP BY {', '.join(groups)}"


_SEEN = ("part", "status", "error", "fault", "cache", "estimated", "in_slo")
"""What rows are counted by, of which there are few combinations."""
_OF_CACHES = {"hit": "hits", "joined": "joined", "semantic": "semantic", "miss": ""}
_OF_FAULTS = {"gateway": "failed_gateway", "upstream": "failed_upstream", "client": "failed_client"}
_ADDED = (*TOKENS, *AMOUNTS, "total_us", "ttft_us")
_UNKNOWN = {"unknown": "cost", "saved_unknown": "saved_exact"}


class RowsAtHand:
    """Some rows, to be added up by several groupings."""

    def __init__(self, rows: Sequence[Stored]) -> None:
        """There is at least one."""
        self.columns: dict[str, Sequence[Any]] = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
        self.columns["hour"] = [at_us // _HOUR_US for at_us in self.columns["at_us"]]
        numbers: dict[tuple[Any, ...], int] = {}
        seen = zip(*(self.columns[name] for name in _SEEN), strict=True)
        self._seen = [numbers.setdefault(each, len(numbers)) for each in seen]
        self._counts = [tuple(_counts_of(*each)) for each in numbers]
        self._added = [name for name in _ADDED if any(self.columns[name])]
        """Most columns of most rows are 0."""
        self._unknown = [name for name in ("ttft_us", *_UNKNOWN.values()) if None in self.columns[name]]
        self._saved = [self.columns[name] for name in SAVINGS if name in self._added]
        if any(None in self.columns[name] for name in SAVINGS):
            # A sum of which one part is not known is not known.
            parts = zip(*(self.columns[name] for name in SAVINGS), strict=True)
            self._saved = [[0 if None in each else sum(each) for each in parts]]

    def sums(self, names: Collection[str], places: Sequence[int]) -> Sequence[int]:
        """The sums of these names, of the rows that stand there."""
        number = len(places)
        of = _all_of if number == len(self._seen) else itemgetter(*places) if number > 1 else _one_of(places[0])
        sums = {"charges": number}
        for seen, calls in Counter(of(self._seen)).items():
            for name in self._counts[seen]:
                sums[name] = sums.get(name, 0) + calls
        for name in self._added:
            if name in names:
                sums[name] = sum(filter(None, of(self.columns[name])))
            elif f"{name}_pico" in names:
                amount = sum(filter(None, of(self.columns[name])))
                sums[f"{name}_micro"], sums[f"{name}_pico"] = divmod(amount, PICO_PER_MICRO)
        unknown = {name: of(self.columns[name]).count(None) for name in self._unknown}
        for name, column in _UNKNOWN.items():
            sums[name] = unknown.get(column, 0)
        sums["ttft_calls"] = number - unknown.get("ttft_us", 0)
        sums["saved_micro"], sums["saved_pico"] = divmod(sum(sum(of(each)) for each in self._saved), PICO_PER_MICRO)
        return [sums.get(name, 0) for name in names]


def _all_of(column: Sequence[Any]) -> Sequence[Any]:
    return column


def _one_of(place: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    return itemgetter(slice(place, place + 1))


def _counts_of(
    part: int, status: int, error: str, fault: str, cache: str, estimated: int, in_slo: int | None
) -> Iterator[str]:
    """Which counts a row is one of that has these."""
    if estimated:
        yield "estimated"
    if in_slo is not None:
        yield "slo_calls"
    if in_slo:
        yield "slo_met"
    if part:
        return
    yield "calls"
    if status >= 400 or error:
        yield "errors"
    if cache in _OF_CACHES:
        yield "looked_up"
        if cache != "miss":
            yield _OF_CACHES[cache]
    if fault in _OF_FAULTS and (fault != "gateway" or error != "slo_shed"):
        yield _OF_FAULTS[fault]
    if error == "slo_shed":
        yield "turned_away"


_WORK = Grouping(
    "new_work",
    ("key", "model", "backend", "agent", "route", "operation", "tenant", "team", "priority", "hour", "day"),
    _WHOLE,
)
_PEOPLE = Grouping("new_people", ("session", "user", "tenant", "day"), _BRIEF)
GROUPINGS = (_WORK, _PEOPLE)
ROLLUPS = (
    Rollup(
        "by_day",
        "day",
        ("tenant", "team", "key", "agent", "priority", "route", "operation", "backend", "model"),
        _WHOLE,
        _WORK,
    ),
    Rollup("by_hour", "hour", ("tenant", "key", "agent", "priority", "route", "backend", "model"), _WHOLE, _WORK),
    Rollup("by_user", "day", ("tenant", "user"), _BRIEF, _PEOPLE),
    Rollup("by_session", "day", ("tenant", "session"), _BRIEF, _PEOPLE),
)
"""The one that tells most apart is asked first."""


INSERT_COLUMNS = quoted(COLUMNS)

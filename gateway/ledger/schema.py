"""What the rows of a ledger add up to: as SQL that SQLite and PostgreSQL both take, and of rows at hand.

Four tables of sums stand beside the rows: by hour and by day for what has few values, by user and by session for what
has many, so that none is as long as the rows. To group rows costs more than to add them up, so new rows are grouped
twice, and each group feeds two tables. A sum of an amount is two numbers, whole micro-dollars and the pico-dollars
over, for a sum of pico-dollars has no room in 64 bits beyond 9.2 million dollars.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
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


Groups: TypeAlias = defaultdict[tuple[str, ...], dict[tuple[Any, ...], Sequence[int]]]
"""By the names of sums, of which most are 0 and not among them, what these are by the values of what groups differ in.
Those of amounts are in pico-dollars."""


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

    def add(self, batch: RowsByColumn, groups: Groups) -> None:
        """Adds the same of rows at hand."""
        names = tuple(name for name in batch.summed if name in self.sums or f"{name}_micro" in self.sums)
        numbers = zip(*(batch.summed[name] for name in names), strict=True)
        same = groups[names]
        new: defaultdict[tuple[Any, ...], list[Sequence[int]]] = defaultdict(list)
        if batch.shared.issuperset(self.keys):
            (keys,) = set(batch.keys(self.keys))
            new[keys] += numbers
        else:
            for keys, each in zip(batch.keys(self.keys), numbers, strict=True):
                new[keys].append(each)
        for keys, rows in new.items():
            if keys in same:
                rows.append(same[keys])
            same[keys] = rows[0] if len(rows) == 1 else [*map(sum, zip(*rows, strict=True))]


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
        found: defaultdict[tuple[Any, ...], dict[str, int]] = defaultdict(dict)
        for names, same in groups.items():
            for of_group, numbers in same.items():
                sums = found[keys_of(of_group)]
                for name, number in zip(names, numbers, strict=True):
                    sums[name] = sums.get(name, 0) + number
        told = [(keys, _in_columns(sums)) for keys, sums in found.items()]
        # Half of all sums are 0 wherever no call fails and none has pictures: these stay as they are.
        some = [name for name in self.sums if any(name in sums for _, sums in told)]
        marks = ", ".join("?" * (len(self.keys) + len(some)))
        values = [(*keys, *(sums.get(name, 0) for name in some)) for keys, sums in told]
        return self._raised(some, f"VALUES ({marks})"), values

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
_IN_TWO_COLUMNS = frozenset({*AMOUNTS, "saved"})
_ENUMERATIONS = ("operation", "cache", "end")
_FLAGS = ("stream", "estimated", "in_slo")
_at_us = itemgetter(COLUMNS.index("at_us"))


class RowsByColumn:
    """Rows that go to a store together, by column: what all of them share is looked at once, and most columns are like
    that.
    """

    def __init__(self, rows: Iterable[Stored]) -> None:
        """There is at least one."""
        # `seq` and the index by time grow at their ends.
        by_column = zip(*sorted(rows, key=_at_us), strict=True)
        self.columns: dict[str, Sequence[Any]] = dict(zip(COLUMNS, by_column, strict=True))
        """`COLUMNS` first, in their order, and then `hour`."""
        self.number = len(self.columns["n"])
        self.shared = {name for name, column in self.columns.items() if column.count(column[0]) == self.number}
        """Columns that say the same in all rows."""
        for name in _ENUMERATIONS:
            self._change(name, str)
        # SQLite's driver takes half a microsecond to find out how it is to keep a boolean.
        for name in _FLAGS:
            self._change(name, _number)
        self.columns["hour"] = hours = tuple([at_us // _HOUR_US for at_us in self.columns["at_us"]])
        if hours[0] == hours[-1]:
            self.shared.add("hour")
        self.summed = self._summed()
        """For each sum that is not 0 what each row adds to it; amounts are whole."""

    def stored(self) -> list[Sequence[Any]]:
        """The values of `COLUMNS`, in their order."""
        return [self.columns[name] for name in COLUMNS]

    def keys(self, names: Sequence[str]) -> Iterable[tuple[Any, ...]]:
        """For each row what it says in these columns."""
        if self.shared.issuperset(names):
            return repeat(tuple(self.columns[name][0] for name in names), self.number)
        return zip(*(self.columns[name] for name in names), strict=True)

    def _change(self, name: str, change: Callable[[Any], Any]) -> None:
        column = self.columns[name]
        if name in self.shared:
            self.columns[name] = (change(column[0]),) * self.number
        else:
            self.columns[name] = tuple(map(change, column))

    def _summed(self) -> dict[str, Sequence[int]]:
        each_one = (1,) * self.number
        summed: dict[str, Sequence[int]] = {"charges": each_one}
        if self.shared.issuperset(_SEEN):
            summed |= dict.fromkeys(_counts_of(*(self.columns[name][0] for name in _SEEN)), each_one)
        else:
            seen = list(self.keys(_SEEN))
            known = {each: frozenset(_counts_of(*each)) for each in set(seen)}
            counts = [known[each] for each in seen]
            for name in frozenset[str]().union(*known.values()):
                summed[name] = [name in of_row for of_row in counts]
        for name in _ADDED:
            column = self.columns[name]
            if column[0] if name in self.shared else any(column):
                summed[name] = [number or 0 for number in column] if None in column else column
        for name, of in _UNKNOWN.items():
            if None in self.columns[of]:
                summed[name] = [number is None for number in self.columns[of]]
        if "ttft_us" not in self.shared or self.columns["ttft_us"][0] is not None:
            summed["ttft_calls"] = [time_us is not None for time_us in self.columns["ttft_us"]]
        if not summed.keys().isdisjoint(SAVINGS):
            # A sum of which one part is not known is not known.
            parts = zip(*(self.columns[name] for name in SAVINGS), strict=True)
            summed["saved"] = [0 if None in each else sum(each) for each in parts]
        return summed


def _number(flag: bool | int | None) -> int | None:
    return None if flag is None else int(flag)


def _in_columns(sums: Mapping[str, int]) -> dict[str, int]:
    """As the columns of tables have them."""
    columns: dict[str, int] = {}
    for name, amount in sums.items():
        if name in _IN_TWO_COLUMNS:
            columns[f"{name}_micro"], columns[f"{name}_pico"] = divmod(amount, PICO_PER_MICRO)
        else:
            columns[name] = amount
    return columns


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

"""What the rows of a ledger add up to, as SQL that SQLite and PostgreSQL both take.

Four tables of sums stand beside the rows: by hour and by day for what has few values, by user and by session for what
has many, so that none is as long as the rows. To group rows costs more than to add them up, so new rows are grouped
twice, and each group feeds two tables. A sum of an amount is two numbers, whole micro-dollars and the pico-dollars
over, for a sum of pico-dollars has no room in 64 bits beyond 9.2 million dollars.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.ledger.row import AMOUNTS, COLUMNS, SAVINGS, TOKENS

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
        raised = ", ".join(f'"{name}" = {self.table}."{name}" + excluded."{name}"' for name in self.sums)
        sums = ", ".join(f'SUM("{name}")' for name in self.sums)
        keys = quoted(self.keys)
        return (
            f"INSERT INTO {self.table} ({quoted((*self.keys, *self.sums))}) SELECT {keys}, {sums} "
            f"FROM {self.grouping.table} WHERE 1 = 1 GROUP BY {keys} ON CONFLICT ({keys}) DO UPDATE SET {raised}"
        )


def _sums_of_rows(keys: tuple[str, ...], sums: dict[str, str], where: str) -> str:
    hour = f"at_us / {_HOUR_US}"
    selected = [f"{hour} AS hour" if key == "hour" else f'"{key}"' for key in keys]
    selected += [f'{sql} AS "{name}"' for name, sql in sums.items()]
    groups = [hour if key == "hour" else f'"{key}"' for key in keys]
    return f"SELECT {', '.join(selected)} FROM calls WHERE {where} GROUP BY {', '.join(groups)}"


_WORK = Grouping("new_work", ("key", "model", "backend", "route", "operation", "tenant", "team", "hour", "day"), _WHOLE)
_PEOPLE = Grouping("new_people", ("session", "user", "tenant", "day"), _BRIEF)
GROUPINGS = (_WORK, _PEOPLE)
ROLLUPS = (
    Rollup("by_day", "day", ("tenant", "team", "key", "route", "operation", "backend", "model"), _WHOLE, _WORK),
    Rollup("by_hour", "hour", ("tenant", "key", "route", "backend", "model"), _WHOLE, _WORK),
    Rollup("by_user", "day", ("tenant", "user"), _BRIEF, _PEOPLE),
    Rollup("by_session", "day", ("tenant", "session"), _BRIEF, _PEOPLE),
)
"""The one that tells most apart is asked first."""


INSERT_COLUMNS = quoted(COLUMNS)

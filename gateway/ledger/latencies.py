"""How many calls took how long: counts that percentiles of any span are read from, for percentiles do not add up.

A time is counted under what is left of it when only its five leading bits are kept: 1,000,003 us under 983,040. So the
column says by itself where a count begins, each is a sixteenth of its beginning wide at most, and the middle of it is
never further than 3.2 % from any time in it. Calls that failed are left out: they are fast, or late for other reasons.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, Literal, NamedTuple

MARK: Final = "latencies"
"""Up to which row they go; a ledger of before they were kept is gone through by and by."""
MEASURES: Final = {"ttft": "ttft_us", "tpot": "tpot_us", "total": "total_us"}
"""What is counted, and the column of a row that has it."""
PROMPTS: Final = (0, 1024, 4096, 16384, 65536)
"""Tokens of a prompt at least: what a long one takes says nothing of a short one."""

_LEADING_BITS = 5
_MOST_BITS = 42
"""Beyond 50 days."""
_INTEGERS = frozenset({"hour", "day", "prompt", "at_least_us"})
_STEPS: Final = {"hour": 3600 * 10**6, "minute": 60 * 10**6}
"""In microseconds."""
_NEW: Final = "new_latencies"


class Counts(NamedTuple):
    """A table of counts. None has everything, or it would be as long as the rows."""

    table: str
    dimensions: tuple[str, ...]
    """The time comes first: it is what a span is looked for by."""

    @property
    def keys(self) -> tuple[str, ...]:
        """What its rows differ in."""
        return (*self.dimensions, "measure", "at_least_us")

    def columns(self) -> dict[str, str]:
        """With their types."""
        types = {key: "BIGINT NOT NULL" if key in _INTEGERS else "TEXT NOT NULL" for key in self.keys}
        return {**types, "calls": "BIGINT NOT NULL"}

    def add(self) -> str:
        """Adds what is counted newly."""
        keys = ", ".join(self.keys)
        return (
            f"INSERT INTO {self.table} ({keys}, calls) SELECT {keys}, SUM(calls) FROM {_NEW} WHERE 1 = 1 "
            f"GROUP BY {keys} ON CONFLICT ({keys}) DO UPDATE SET calls = {self.table}.calls + excluded.calls"
        )


COUNTS: Final = (
    Counts("latencies_by_route", ("day", "route", "prompt")),
    Counts("latencies_by_route_and_hour", ("day", "hour", "route", "prompt")),
    Counts("latencies_by_day", ("day", "tenant", "route", "model", "prompt")),
    Counts("latencies_by_hour", ("day", "hour", "tenant", "route", "prompt")),
)
"""The one that is shorter over a long time is asked first."""


def fill(counts: Counts) -> str | None:
    """Counts what another table has counted by more: for one that is new in a ledger that is not. None if none has."""
    keys = ", ".join(counts.keys)
    for wider in COUNTS:
        if wider is not counts and set(counts.dimensions) <= set(wider.dimensions):
            return f"INSERT INTO {counts.table} ({keys}, calls) SELECT {keys}, SUM(calls) FROM {wider.table} GROUP BY {keys}"
    return None


def width_us(at_least_us: int) -> int:
    """How wide the count is that begins there."""
    return 1 << max(0, at_least_us.bit_length() - _LEADING_BITS)


def select(where: str, step: Literal["hour", "minute"] = "hour") -> str:
    """The counts of rows, with all dimensions that any of the tables has, or minutes in place of hours."""
    return " UNION ALL ".join(_count(measure, where, step) for measure in MEASURES)


def add(after: int, upto: int) -> list[str]:
    """Counts the rows behind one `seq` and up to another one."""
    new = f"CREATE TEMPORARY TABLE {_NEW} AS {select(f'seq > {after:d} AND seq <= {upto:d}')}"
    return [new, *(counts.add() for counts in COUNTS), f"DROP TABLE {_NEW}"]


def _count(measure: str, where: str, step: str) -> str:
    column = MEASURES[measure]
    prompts = " ".join(f"WHEN input_tokens < {below} THEN {at_least}" for at_least, below in pairwise(PROMPTS))
    # What tells most apart comes first, for the sake of the sorting.
    return (
        f"SELECT at_us / {_STEPS[step]} AS {step}, day, tenant, route, model, "
        f"CASE {prompts} ELSE {PROMPTS[-1]} END AS prompt, '{measure}' AS measure, "
        f"{column} - {column} % {_width(column, _LEADING_BITS, _MOST_BITS)} AS at_least_us, COUNT(*) AS calls "
        f"FROM calls WHERE {where} AND part = 0 AND kind = 'call' AND status < 400 AND \"end\" = 'clean' "
        f"AND {column} IS NOT NULL GROUP BY at_least_us, model, tenant, route, prompt, {step}, day"
    )


def _width(column: str, bits: int, most_bits: int) -> str:
    """`width_us` of a number with so many bits, as SQL: neither database counts bits, so it is looked for by halves."""
    if bits == most_bits:
        return str(1 << (bits - _LEADING_BITS))
    middle = (bits + most_bits) // 2
    below, above = _width(column, bits, middle), _width(column, middle + 1, most_bits)
    return f"CASE WHEN {column} < {1 << middle} THEN {below} ELSE {above} END"

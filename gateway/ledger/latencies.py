"""How many calls took how long: counts that percentiles of any span are read from, for percentiles do not add up.

A time is counted under what is left of it when only its five leading bits are kept: 1,000,003 us under 983,040. So the
column says by itself where a count begins, each is a sixteenth of its beginning wide at most, and the middle of it is
never further than 3.2 % from any time in it. Calls that failed are left out: they are fast, or late for other reasons.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress, pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from gateway.ledger.schema import RowsByColumn

MARK: Final = "latencies"
"""Up to which row they go; a ledger of before they were kept is gone through by and by."""
MEASURES: Final = {"ttft": "ttft_us", "tpot": "tpot_us", "total": "total_us"}
"""What is counted, and the column of a row that has it."""
PROMPTS: Final = (0, 1024, 4096, 16384, 65536)
"""Tokens of a prompt at least: what a long one takes says nothing of a short one."""

_LEADING_BITS = 5
_MOST_BITS = 42
"""Beyond 50 days."""
_BELOW: Final = tuple(max(0, min(bits, _MOST_BITS) - _LEADING_BITS) for bits in range(65))
"""By the bits that a time has, how many of them its count does not tell."""
_INTEGERS = frozenset({"hour", "day", "prompt", "at_least_us"})
_EXPRESSIONS: Final = {
    "hour": "at_us / 3600000000",
    "minute": "at_us / 60000000",
    "prompt": " ".join(
        (
            "CASE",
            *(f"WHEN input_tokens < {below} THEN {at_least}" for at_least, below in pairwise(PROMPTS)),
            f"ELSE {PROMPTS[-1]} END",
        )
    ),
}
"""What is no column of a row."""
_ALL: Final = ("model", "tenant", "route", "prompt", "hour", "day")
_NEW: Final = "new_latencies"
_COUNTED: Final = (*_ALL, "measure", "at_least_us")
Counted: TypeAlias = tuple[str, str, str, int, int, int, str, int]
"""What calls are counted by."""


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
            f"GROUP BY {keys} {self._raised}"
        )

    def add_counted(self, counted: Mapping[Counted, int]) -> tuple[str, list[tuple[Any, ...]]]:
        """Adds what is counted of rows at hand: a statement, and the values of each time that it is to be executed."""
        calls: Counter[tuple[Any, ...]] = Counter()
        keys_of = itemgetter(*map(_COUNTED.index, self.keys))
        for counts, number in counted.items():
            calls[keys_of(counts)] += number
        marks = ", ".join("?" * (len(self.keys) + 1))
        statement = f"INSERT INTO {self.table} ({', '.join(self.keys)}, calls) VALUES ({marks}) {self._raised}"
        return statement, [(*keys, number) for keys, number in calls.items()]

    @property
    def _raised(self) -> str:
        return f"ON CONFLICT ({', '.join(self.keys)}) DO UPDATE SET calls = {self.table}.calls + excluded.calls"


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
            sums = f"SELECT {keys}, SUM(calls) FROM {wider.table} GROUP BY {keys}"
            return f"INSERT INTO {counts.table} ({keys}, calls) {sums}"
    return None


def width_us(at_least_us: int) -> int:
    """How wide the count is that begins there."""
    return 1 << max(0, min(at_least_us.bit_length(), _MOST_BITS) - _LEADING_BITS)


def count(batch: RowsByColumn) -> Counter[Counted]:
    """The counts of rows at hand, by all that any of the tables has."""
    counted: Counter[Counted] = Counter()
    known = batch.keys(("part", "kind", "status", "end"))
    fine = [not part and kind == "call" and status < 400 and end == "clean" for part, kind, status, end in known]
    prompts = [bisect_right(PROMPTS, tokens) for tokens in batch.columns["input_tokens"]]
    alike: defaultdict[tuple[tuple[Any, ...], int], list[int]] = defaultdict(list)
    dimensions = zip(batch.keys(("model", "tenant", "route", "hour", "day")), prompts, strict=True)
    for place, these in compress(enumerate(dimensions), fine):
        alike[these].append(place)
    measures = [
        (measure, batch.columns[name])
        for measure, name in MEASURES.items()
        if name not in batch.shared or batch.columns[name][0] is not None
    ]
    for ((model, tenant, route, hour, day), prompt), places in alike.items():
        for measure, times in measures:
            each = map(times.__getitem__, places)
            counts = Counter([us and us >> (below := _BELOW[us.bit_length()]) << below for us in each])
            del counts[None]
            for at_least_us, calls in counts.items():
                counted[model, tenant, route, PROMPTS[prompt - 1], hour, day, measure, at_least_us] = calls
    return counted


def select(where: str, names: Sequence[str] = _ALL) -> str:
    """The counts of rows, with these dimensions; with all that any of the tables has, if none are named."""
    return " UNION ALL ".join(_count(measure, where, names) for measure in MEASURES)


def add(after: int, upto: int) -> list[str]:
    """Counts the rows behind one `seq` and up to another one."""
    new = f"CREATE TEMPORARY TABLE {_NEW} AS {select(f'seq > {after:d} AND seq <= {upto:d}')}"
    return [new, *(counts.add() for counts in COUNTS), f"DROP TABLE {_NEW}"]


def _count(measure: str, where: str, names: Sequence[str]) -> str:
    column = MEASURES[measure]
    dimensions = "".join(f"{_EXPRESSIONS.get(name, name)} AS {name}, " for name in names)
    # What tells most apart comes first, for the sake of the sorting.
    return (
        f"SELECT {dimensions}'{measure}' AS measure, "
        f"{column} - {column} % {_width(column, _LEADING_BITS, _MOST_BITS)} AS at_least_us, COUNT(*) AS calls "
        f"FROM calls WHERE {where} AND part = 0 AND kind = 'call' AND status < 400 AND \"end\" = 'clean' "
        f"AND {column} IS NOT NULL GROUP BY {', '.join(('at_least_us', *names))}"
    )


def _width(column: str, bits: int, most_bits: int) -> str:
    """`width_us` of a number with so many bits, as SQL: neither database counts bits, so it is looked for by halves."""
    if bits == most_bits:
        return str(1 << (bits - _LEADING_BITS))
    middle = (bits + most_bits) // 2
    below, above = _width(column, bits, middle), _width(column, middle + 1, most_bits)
    return f"CASE WHEN {column} < {1 << middle} THEN {below} ELSE {above} END"

"""How things stood, minute by minute: a value of some gauges each minute, for eight days."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gateway.sql.database import Transaction

TABLE: Final = "samples"
COLUMNS: Final = {
    "minute": "BIGINT NOT NULL",
    "name": "TEXT NOT NULL",
    "label": "TEXT NOT NULL",
    "value": "DOUBLE PRECISION NOT NULL",
}
KEYS: Final = ("minute", "name", "label")
KEPT_MINUTES: Final = 8 * 24 * 60
SUMMED: Final = frozenset({"in_flight"})
"""What several processes have together; of others the greatest one stands for all."""

_KEEP: Final = (
    f"INSERT INTO {TABLE} (minute, name, label, value) VALUES (?, ?, ?, ?) ON CONFLICT (minute, name, label) "
)
_ADD: Final = f"DO UPDATE SET value = {TABLE}.value + excluded.value"
_RAISE: Final = f"DO UPDATE SET value = excluded.value WHERE excluded.value > {TABLE}.value"


class GaugeSample(NamedTuple):
    """`minute` since the Unix epoch; `label` is whose gauge it is."""

    minute: int
    name: str
    label: str
    value: float


class Sampled(NamedTuple):
    """What the samples of one step come to: the greatest value, and in how many minutes it was not 0."""

    at_s: int
    name: str
    label: str
    most: float
    minutes: int


def keep(transaction: Transaction, samples: Iterable[GaugeSample]) -> None:
    """Add those of this process to what others have told."""
    for sample in samples:
        transaction.execute(_KEEP + (_ADD if sample.name in SUMMED else _RAISE), sample)


def forget_old(transaction: Transaction, minute: int) -> None:
    """Take away those that are too old in that minute."""
    transaction.execute(f"DELETE FROM {TABLE} WHERE minute < ?", (minute - KEPT_MINUTES,))


def sampled(transaction: Transaction, names: Sequence[str], since_s: int, step_minutes: int) -> list[Sampled]:
    """Of these gauges since then, in steps of so many minutes, in order of time."""
    places = ", ".join("?" * len(names))
    found = transaction.fetch(
        f"SELECT minute / {step_minutes:d} AS step, name, label, MAX(value), COUNT(*) FILTER (WHERE value > 0) "
        f"FROM {TABLE} WHERE minute >= ? AND name IN ({places}) GROUP BY step, name, label ORDER BY step, name, label",
        (since_s // 60, *names),
    )
    return [Sampled(step * step_minutes * 60, name, label, most, int(n)) for step, name, label, most, n in found]

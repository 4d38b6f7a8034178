"""How things stood over a span: gauges as they were kept each minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.dashboard.ranges import Range
from gateway.ledger.samples import sampled
from gateway.sql.database import Transaction


class Past(NamedTuple):
    """Of one gauge: the greatest value in each step, None where nobody looked, and in how many minutes it was not 0."""

    most: list[float | None]
    minutes: int


def stood(transaction: Transaction, span: Range, names: Sequence[str]) -> dict[str, dict[str, Past]]:
    """By label and name. Samples are kept for some days; of before there are none."""
    found: dict[str, dict[str, Past]] = {}
    for sample in sampled(transaction, names, span.ticks[0].at, span.step_minutes):
        place = span.step_of(sample.at_s)
        if place is None:
            continue
        past = found.setdefault(sample.label, {}).get(sample.name) or Past([None] * len(span.ticks), 0)
        past.most[place] = max(past.most[place] or 0.0, sample.most)
        found[sample.label][sample.name] = past._replace(minutes=past.minutes + sample.minutes)
    return found

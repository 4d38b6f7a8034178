"""The first page: money, caches and service over one span, from one pass through the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from gateway.dashboard.queries import money
from gateway.dashboard.queries.asked import Selection
from gateway.dashboard.queries.before import comparable, is_comparable
from gateway.dashboard.queries.book import Book
from gateway.dashboard.ranges import Range, Tick
from gateway.ledger.amounts import usd_text
from gateway.ledger.percentiles import LatencyDimension, Spread, together
from gateway.ledger.sums import Line

_COUNTS = (
    *("calls", "looked_up", "hits", "joined", "semantic", "input_tokens", "cached_tokens", "output_tokens"),
    *("failed_gateway", "failed_upstream", "failed_client", "turned_away", "slo_calls", "slo_met"),
)
_PERCENTS = (50, 95, 99)
_MOST_SHARES = 8


def overview(book: Book, asked: Selection) -> dict[str, Any]:
    """Amounts are decimal text; a step without a call is a 0 of what is counted, and None of what is measured.

    `is_empty`: no call of the asker's has ever come by.
    """
    asked.check_size(book.transaction)
    span = asked.span
    lines = {
        line.values[0]: line for line in book.sums((span.step,), span.within, asked.only, (*_COUNTS, *money.AMOUNTS))
    }
    steps_before = {}
    if is_comparable(book, asked):
        steps_before = {line.values[0]: line for line in book.sums((span.step,), span.before, asked.only, money.COST)}
    before = comparable(book, asked, (), (*_COUNTS, *money.COST))
    now_lines = list(lines.values())
    steps = [lines.get(span.text(tick.number)) for tick in span.ticks]
    return {
        "range": span.name,
        "step": span.step,
        "at": [tick.at for tick in span.ticks],
        "cost": [usd_text(0 if line is None else money.pico(line, "cost")) for line in steps],
        "cost_before": [_before(span, tick, steps_before) for tick in span.ticks],
        "counts": {name: [0 if line is None else line.sums[name] for line in steps] for name in _COUNTS},
        "totals": _totals(now_lines),
        "totals_before": _totals(before) if before else None,
        "is_empty": book.first_day(asked.scope.tenant) is None,
        "money": money.spent(book, asked, now_lines, before),
        "times": _times(book, asked),
        "shares": _shares(book, asked) if asked.scope.tenant is None else [],
    }


def _before(span: Range, tick: Tick, before: dict[str, Line]) -> str | None:
    line = None if tick.before is None else before.get(span.text(tick.before))
    return None if line is None else usd_text(money.pico(line, "cost"))


def _totals(lines: Sequence[Line]) -> dict[str, int]:
    return {name: sum(line.sums[name] for line in lines) for name in _COUNTS}


def _times(book: Book, asked: Selection) -> dict[str, Any]:
    """Percentiles in milliseconds of each step and of the whole; of calls by route and tenant, for no more is counted.

    Empty where calls of one key or one backend are asked for.
    """
    only = asked.only
    if not only.keys() <= {"tenant", "route", "model"} or ("model" in only and asked.span.step == "hour"):
        return {}
    span = asked.span
    among = cast(Mapping[LatencyDimension, str], only)
    spreads: dict[str, dict[str, Spread]] = {}
    for spread in book.counted((span.step,), span.within, among):
        spreads.setdefault(spread.measure, {})[spread.values[0]] = spread
    names = [f"p{percent}" for percent in _PERCENTS]
    found: dict[str, Any] = {}
    for measure, steps in spreads.items():
        whole = dict(zip(names, _ms(together(measure, steps.values())), strict=True))
        by_step = zip(*(_ms(steps.get(span.text(tick.number))) for tick in span.ticks), strict=True)
        found[measure] = {"whole": whole, **dict(zip(names, by_step, strict=True))}
    return found


def _ms(spread: Spread | None) -> list[float | None]:
    if spread is None:
        return [None] * len(_PERCENTS)
    return [round(time_us / 1000, 1) for time_us in spread.percentiles_us(_PERCENTS)]


def _shares(book: Book, asked: Selection) -> list[dict[str, Any]]:
    """Who has had how much of the work, by tokens."""
    found = book.sums(("tenant",), asked.span.within, asked.only, ("input_tokens", "output_tokens"))
    shares = [(line.sums["input_tokens"] + line.sums["output_tokens"], line.values[0]) for line in found]
    return [{"name": name, "tokens": tokens} for tokens, name in sorted(shares, reverse=True)[:_MOST_SHARES]]

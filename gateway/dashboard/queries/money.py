"""What was spent and on what, what was saved and by what, and what the month will come to."""

from __future__ import annotations

import calendar
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from statistics import median
from typing import Any

from gateway.dashboard.queries.asked import Selection
from gateway.dashboard.queries.before import comparable
from gateway.dashboard.queries.book import Book
from gateway.ledger.amounts import usd_text
from gateway.ledger.days import day_number
from gateway.ledger.row import SAVINGS
from gateway.ledger.schema import PICO_PER_MICRO
from gateway.ledger.sums import Line, Within

_MOST_NAMES = 50
"""Beyond these the rest is one line."""
_LEAST_DAYS = 7
"""Of fewer nobody can say what a month will come to."""
_WEEKS = 5


COST = ("cost_micro", "cost_pico")
AMOUNTS = (*COST, "charges", "unknown", *(f"{name}_{part}" for name in SAVINGS for part in ("micro", "pico")))
"""The sums that `spent` needs of its lines."""
_NAMED = (
    *COST,
    *("saved_micro", "saved_pico", "charges", "unknown", "saved_unknown", "calls", "input_tokens", "output_tokens"),
)


def pico(line: Line, name: str) -> int:
    """One amount of a line; of what has no price nothing."""
    return line.sums[f"{name}_micro"] * PICO_PER_MICRO + line.sums[f"{name}_pico"]


def total(lines: Iterable[Line], name: str) -> int:
    """An amount of all of them."""
    return sum(pico(line, name) for line in lines)


def spent(book: Book, asked: Selection, lines: Sequence[Line], before: Sequence[Line]) -> dict[str, Any]:
    """`lines` by step, and what of the span before can be compared with them."""
    saved = {name.removeprefix("saved_"): total(lines, name) for name in SAVINGS}
    return {
        "spent": usd_text(total(lines, "cost")),
        "before": usd_text(total(before, "cost")) if before else None,
        "charges": sum(line.sums["charges"] for line in lines),
        "unknown": sum(line.sums["unknown"] for line in lines),
        "list": usd_text(total(lines, "cost") + sum(saved.values())),
        "saved": usd_text(sum(saved.values())),
        "causes": {cause: usd_text(amount) for cause, amount in saved.items()},
        "by": _by(book, asked),
        "month": _month(book, asked),
    }


def _by(book: Book, asked: Selection) -> list[dict[str, Any]]:
    """The dearest first, the rest together; what has no price stands by its calls."""
    only = asked.only
    now = {line.values[0]: line for line in book.sums((asked.by,), asked.span.within, only, _NAMED)}
    before = {line.values[0]: line for line in comparable(book, asked, (asked.by,), COST)}
    names = sorted(now, key=lambda name: (-pico(now[name], "cost"), -now[name].sums["calls"], name))
    shown, rest = names[:_MOST_NAMES], names[_MOST_NAMES:]
    lines = [_line_of(name, [now[name]], [before[name]] if name in before else []) for name in shown]
    if rest:
        lines.append(
            {
                **_line_of("", [now[name] for name in rest], [before[name] for name in rest if name in before]),
                "others": len(rest),
            }
        )
    return lines


def _line_of(name: str, now: Sequence[Line], before: Sequence[Line]) -> dict[str, Any]:
    charges = sum(line.sums["charges"] for line in now)
    unknown, saved_unknown = (sum(line.sums[count] for line in now) for count in ("unknown", "saved_unknown"))
    return {
        "name": name,
        "cost": None if charges and unknown == charges else usd_text(total(now, "cost")),
        "before": usd_text(total(before, "cost")) if before else None,
        "saved": None if charges and saved_unknown == charges else usd_text(total(now, "saved")),
        "unknown": unknown,
        "calls": sum(line.sums["calls"] for line in now),
        "input_tokens": sum(line.sums["input_tokens"] for line in now),
        "output_tokens": sum(line.sums["output_tokens"] for line in now),
    }


def _month(book: Book, asked: Selection) -> dict[str, Any] | None:
    """So far, and what is likely by its end: each day to come as the median of like weekdays of the last weeks, its
    range from the least to the most of them. None in the first week that there is anything.
    """
    today = asked.span.today
    first = today.replace(day=1)
    since = min(first, today - timedelta(weeks=_WEEKS))
    within = Within("day", day_number(since), day_number(today))
    costs = {line.values[0]: pico(line, "cost") for line in book.sums(("day",), within, asked.only, COST)}
    known = [day for day in costs if costs[day]]
    if not known:
        return None
    begin = date.fromisoformat(min(known))
    so_far = sum(cost for day, cost in costs.items() if day >= first.isoformat())
    figures = {"name": first.isoformat()[:7], "so_far": usd_text(so_far)}
    if (today - begin).days < _LEAST_DAYS:
        return figures
    likely = least = most = 0
    end = first.replace(day=calendar.monthrange(first.year, first.month)[1])
    for offset in range((end - today).days + 1):
        day = today + timedelta(days=offset)
        days = (day - timedelta(weeks=week) for week in range(1, 2 * _WEEKS))
        like = [costs.get(each.isoformat(), 0) for each in days if begin <= each < today][:_WEEKS]
        gone = costs.get(day.isoformat(), 0)
        likely += max(int(median(like)) - gone, 0)
        least += max(min(like) - gone, 0)
        most += max(max(like) - gone, 0)
    return {
        **figures,
        "likely": usd_text(so_far + likely),
        "least": usd_text(so_far + least),
        "most": usd_text(so_far + most),
    }

"""How long calls took by the length of their prompts and by route, whether routes keep what they promise, and whether
tenants are served alike, and priorities as they should be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

from gateway.dashboard.queries.asked import Selection
from gateway.dashboard.queries.book import Book
from gateway.ledger.percentiles import LatencyDimension
from gateway.ledger.sums import Dimension, Within

_PERCENTS = (50, 95, 99)
_OBJECTIVE = 0.99
"""Of the calls with a limit so many are to be in time; the alerts reckon with the same."""
_BURN_HOURS = (1, 6)
_SLO = ("slo_calls", "slo_met")
_OF_THE_SERVED = (
    *("calls", "input_tokens", "output_tokens", "turned_away", "failed_gateway", "failed_upstream"),
    *_SLO,
)
_MOST = 50


def service(book: Book, asked: Selection) -> dict[str, Any]:
    """`times` in milliseconds. A route's `burn`: how many times as fast as it may it uses up what may be late, over the
    hours that end now; without those in which no call had a limit.
    """
    asked.check_size(book.transaction)
    only = cast(Mapping[LatencyDimension, str], asked.only)
    is_counted = only.keys() <= {"tenant", "route"}
    return {
        "range": asked.span.name,
        "times": {by: _times(book, asked, by) for by in ("prompt", "route")} if is_counted else {},
        "routes": _routes(book, asked),
        "tenants": _served(book, asked, "tenant"),
        "priorities": _served(book, asked, "priority"),
    }


def _times(book: Book, asked: Selection, by: LatencyDimension) -> list[dict[str, Any]]:
    only = cast(Mapping[LatencyDimension, str], asked.only)
    found: dict[str, dict[str, Any]] = {}
    for spread in book.counted((by,), asked.span.within, only):
        line = found.setdefault(spread.values[0], {"name": spread.values[0]})
        percentiles = (round(time_us / 1000, 1) for time_us in spread.percentiles_us(_PERCENTS))
        line[spread.measure] = {"calls": spread.calls, **dict(zip(("p50", "p95", "p99"), percentiles, strict=True))}
    if by == "prompt":
        return sorted(found.values(), key=lambda line: int(line["name"]))
    return sorted(found.values(), key=lambda line: (-line["total"]["calls"], line["name"]))[:_MOST]


def _routes(book: Book, asked: Selection) -> list[dict[str, Any]]:
    """Those with an SLO, the busiest first."""
    late = {
        line.values[0]: line.sums
        for line in book.sums(("route",), asked.span.within, asked.only, _SLO)
        if line.sums["slo_calls"]
    }
    hour = int(asked.now_s // 3600)
    burns: dict[str, dict[str, float]] = {}
    for hours in _BURN_HOURS:
        # The hour that has begun, and those before it: an hour that is a minute old would say nothing.
        for line in book.sums(("route",), Within("hour", hour - hours, hour), asked.only, _SLO):
            if line.sums["slo_calls"]:
                share = 1 - line.sums["slo_met"] / line.sums["slo_calls"]
                burns.setdefault(line.values[0], {})[f"{hours}h"] = round(share / (1 - _OBJECTIVE), 2)
    busiest = sorted(late, key=lambda name: (-late[name]["slo_calls"], name))
    return [{"name": name, **late[name], "burn": burns.get(name, {})} for name in busiest[:_MOST]]


def _served(book: Book, asked: Selection, by: Dimension) -> list[dict[str, Any]]:
    """Those with the most work first, the rest together."""
    lines = book.sums((by,), asked.span.within, asked.only, _OF_THE_SERVED)
    lines = sorted(lines, key=lambda line: (-line.sums["input_tokens"] - line.sums["output_tokens"], line.values))
    shown = [{"name": line.values[0], **line.sums} for line in lines[:_MOST]]
    rest: Counter[str] = Counter()
    for line in lines[_MOST:]:
        rest.update(line.sums)
    if len(lines) > _MOST:
        shown.append({"name": "", "others": len(lines) - _MOST, **{name: rest[name] for name in _OF_THE_SERVED}})
    return shown

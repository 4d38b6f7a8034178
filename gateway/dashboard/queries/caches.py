"""How often caches have answered over a span, by step and by route, and how much of prompts providers had kept."""

from __future__ import annotations

from typing import Any

from gateway.dashboard.queries.asked import Selection
from gateway.dashboard.queries.before import comparable
from gateway.dashboard.queries.book import Book
from gateway.dashboard.queries.money import total
from gateway.dashboard.queries.stood import stood
from gateway.ledger.amounts import usd_text
from gateway.ledger.sums import Line

_MET = ("looked_up", "hits", "joined", "semantic")
_TOKENS = ("input_tokens", "cached_tokens")
_COUNTS = (*_MET, *_TOKENS)
_KEPT = ("saved_prompt", "saved_provider")
_AMOUNTS = ("charges", "saved_unknown", *(f"{name}_{part}" for name in _KEPT for part in ("micro", "pico")))
_MOST = 50


def caches(book: Book, asked: Selection) -> dict[str, Any]:
    """A step without a call is a 0. Routes by how many calls met a cache, models by the tokens of their prompts."""
    asked.check_size(book.transaction)
    span, only = asked.span, asked.only
    steps = {line.values[0]: line for line in book.sums((span.step,), span.within, only, _COUNTS)}
    before = comparable(book, asked, (), _COUNTS)
    routes = [line for line in book.sums(("route",), span.within, only, _MET) if line.sums["looked_up"]]
    models = book.sums(("model",), span.within, only, (*_TOKENS, *_AMOUNTS))
    models_before = {line.values[0]: line for line in comparable(book, asked, ("model",), _TOKENS)}
    lines = [steps.get(span.text(tick.number)) for tick in span.ticks]
    return {
        "range": span.name,
        "step": span.step,
        "at": [tick.at for tick in span.ticks],
        "counts": {name: [0 if line is None else line.sums[name] for line in lines] for name in _COUNTS},
        "totals": {name: sum(line.sums[name] for line in steps.values()) for name in _COUNTS},
        "totals_before": before[0].sums if before else None,
        "wrong_at_most": {
            route: past["wrong_at_most"].most
            for route, past in stood(book.transaction, span, ("wrong_at_most",)).items()
            if asked.scope.tenant is None
        },
        "routes": [
            {"name": line.values[0], **line.sums}
            for line in sorted(routes, key=lambda line: (-line.sums["looked_up"], line.values))[:_MOST]
        ],
        "models": [
            _model(line, models_before.get(line.values[0]))
            for line in sorted(models, key=lambda line: (-line.sums["input_tokens"], line.values))[:_MOST]
        ],
    }


def _model(line: Line, before: Line | None) -> dict[str, Any]:
    is_unknown = line.sums["saved_unknown"] == line.sums["charges"]
    return {
        "name": line.values[0],
        **{name: line.sums[name] for name in _TOKENS},
        "before": None if before is None else {name: before.sums[name] for name in _TOKENS},
        "saved": None if is_unknown else usd_text(sum(total([line], name) for name in _KEPT)),
    }

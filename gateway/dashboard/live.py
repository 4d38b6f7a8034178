"""How backends are just now, and how sure the semantic cache is: from the metrics of all workers."""

from __future__ import annotations

import re
from math import inf
from typing import Any

from backends.clock import Clock
from gateway.metrics.scrape import Scrape

_KEPT_S = 2.0
"""All parts of a page that asks anew have it from one look, which takes longer than most of their questions."""
_BACKENDS = {
    "slipstream_backend_in_flight": "in_flight",
    "slipstream_breaker_open": "breaker_open",
    "slipstream_probe_up": "probe_up",
}
_BOUNDS = {
    "slipstream_semantic_wrong_hit_rate": "likely",
    "slipstream_semantic_wrong_hit_rate_upper": "at_most",
    "slipstream_semantic_wrong_hit_rate_bound": "bound",
    "slipstream_semantic_threshold": "threshold",
    "slipstream_semantic_labels_known": "labels",
    "slipstream_semantic_in_doubt": "in_doubt",
}
_SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class Live:
    """How things are, at most two seconds ago."""

    def __init__(self, scrape: Scrape, clock: Clock) -> None:
        self._scrape = scrape
        self._clock = clock
        self._said: dict[str, Any] = {}
        self._at = -inf

    async def now(self) -> dict[str, Any]:
        """`backends` by name; `semantic` by route: likely wrong answers per look-up, at most so many, the bound, and
        what the decision has learned; a threshold that nothing reaches is infinite.
        """
        if self._clock.now() - self._at > _KEPT_S:
            self._said = _read(b"".join(await self._scrape.pieces(compressed=False)).decode())
            self._at = self._clock.now()
        return self._said


def _read(text: str) -> dict[str, Any]:
    backends: dict[str, dict[str, float]] = {}
    semantic: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        # Nearly all lines are of other metrics.
        if not line.startswith(("slipstream_b", "slipstream_p", "slipstream_s")):
            continue
        if (sample := _SAMPLE.match(line)) is None:
            continue
        name, labels, value = sample.groups()
        for fields, known, label in ((_BACKENDS, backends, "backend"), (_BOUNDS, semantic, "route")):
            if name in fields:
                of = _ESCAPED.sub(lambda sign: "\n" if sign[1] == "n" else sign[1], dict(_LABEL.findall(labels))[label])
                figures = known.setdefault(of, {})
                # A backend of several routes is out where it is out of one.
                figures[fields[name]] = max(figures.get(fields[name], -inf), float(value))
    return {"backends": backends, "semantic": semantic}

"""How backends, routes and engines are just now, and how sure the semantic cache is: from metrics of all workers."""

from __future__ import annotations

import re
from math import inf
from typing import Any, NamedTuple

from backends.clock import Clock
from gateway.metrics.scrape import Scrape

_KEPT_S = 2.0
"""All parts of a page that asks anew have it from one look, which takes longer than most of their questions."""
_SAMPLE = re.compile(r"^([\w:]+)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class _Told(NamedTuple):
    """Where a metric goes: which group, by the value of which label, as which field; of a counter all together."""

    group: str
    label: str
    field: str
    kind: str = ""
    """The label whose value stands behind the field's name."""
    is_sum: bool = False


def _counted(group: str, label: str, field: str, kind: str = "") -> _Told:
    return _Told(group, label, field, kind, is_sum=True)


_METRICS = {
    "slipstream_backend_in_flight": _Told("backends", "backend", "in_flight"),
    "slipstream_breaker_open": _Told("backends", "backend", "breaker_open"),
    "slipstream_probe_up": _Told("backends", "backend", "probe_up"),
    "slipstream_kv_live": _Told("backends", "backend", "kv_live"),
    "slipstream_kv_blocks": _Told("backends", "backend", "kv_blocks"),
    "slipstream_ejections_total": _counted("backends", "backend", "ejections"),
    "slipstream_routing_first_token_error": _Told("replicas", "replica", "error"),
    "slipstream_routing_first_token_residual": _Told("replicas", "replica", "residual"),
    "slipstream_routing_model_known": _Told("replicas", "replica", "known"),
    "slipstream_routing_tokens_in_flight": _Told("replicas", "replica", "tokens"),
    "slipstream_routing_index_blocks": _Told("replicas", "replica", "blocks"),
    "slipstream_routing_prompt_tokens_total": _counted("replicas", "replica", "prompt", "kind"),
    "slipstream_autoscale_replicas": _Told("routes", "route", "replicas"),
    "slipstream_autoscale_desired_replicas": _Told("routes", "route", "desired"),
    "slipstream_admission_waiting": _Told("routes", "route", "waiting"),
    "slipstream_admission_drain_seconds": _Told("routes", "route", "drain_s"),
    "slipstream_admission_shed_total": _counted("routes", "route", "shed"),
    "slipstream_fallbacks_total": _counted("routes", "route", "fallbacks"),
    "slipstream_retries_total": _counted("routes", "route", "retries"),
    "slipstream_hedges_total": _counted("routes", "route", "hedges"),
    "slipstream_hedges_won_total": _counted("routes", "route", "hedges_won"),
    "slipstream_draft_tokens_total": _counted("routes", "route", "drafted", "outcome"),
    "slipstream_batching_inputs_sum": _counted("routes", "route", "batched"),
    "slipstream_batching_inputs_count": _counted("routes", "route", "batches"),
    "vllm:num_requests_running": _Told("engines", "engine", "running"),
    "vllm:num_requests_waiting": _Told("engines", "engine", "waiting"),
    "vllm:kv_cache_usage_perc": _Told("engines", "engine", "kv_used"),
    "vllm:prefix_cache_queries_total": _counted("engines", "engine", "prefix_asked"),
    "vllm:prefix_cache_hits_total": _counted("engines", "engine", "prefix_hits"),
    "vllm:spec_decode_num_draft_tokens_total": _counted("engines", "engine", "drafted"),
    "vllm:spec_decode_num_accepted_tokens_total": _counted("engines", "engine", "accepted"),
    "slipstream_engine_steps_total": _counted("engines", "engine", "steps"),
    "slipstream_engine_step_answers_total": _counted("engines", "engine", "step_answers"),
    "slipstream_semantic_wrong_hit_rate": _Told("semantic", "route", "likely"),
    "slipstream_semantic_wrong_hit_rate_upper": _Told("semantic", "route", "at_most"),
    "slipstream_semantic_wrong_hit_rate_bound": _Told("semantic", "route", "bound"),
    "slipstream_semantic_threshold": _Told("semantic", "route", "threshold"),
    "slipstream_semantic_labels_known": _Told("semantic", "route", "labels"),
    "slipstream_semantic_lookups_total": _counted("semantic", "route", "looked_up", "result"),
    "slipstream_semantic_in_doubt": _Told("semantic", "route", "in_doubt"),
}

Figures = dict[str, dict[str, float]]
"""By name, and then by field."""


class Live:
    """How things are, at most two seconds ago."""

    def __init__(self, scrape: Scrape, clock: Clock) -> None:
        self._scrape = scrape
        self._clock = clock
        self._said: dict[str, Figures] = {}
        self._at = -inf

    async def now(self) -> dict[str, Figures]:
        """`backends`, `replicas` (a backend and its model, as routes balance them), `routes`, `engines`; `semantic` by
        route: likely wrong answers per look-up, at most so many, the bound, and what the decision has learned; a
        threshold that nothing reaches is infinite. Counters are those since the start.
        """
        if self._clock.now() - self._at > _KEPT_S:
            self._said = read(b"".join(await self._scrape.pieces(compressed=False)).decode())
            self._at = self._clock.now()
        return self._said


def read(text: str) -> dict[str, Any]:
    """The same, of Prometheus' text format."""
    found: dict[str, Figures] = {told.group: {} for told in _METRICS.values()}
    for line in text.splitlines():
        # Nearly all lines are of other metrics.
        told = _METRICS.get(line.partition("{")[0])
        if told is None or (sample := _SAMPLE.match(line)) is None:
            continue
        labels = {name: _ESCAPED.sub(_unescaped, value) for name, value in _LABEL.findall(sample[2])}
        figures = found[told.group].setdefault(labels[told.label], {})
        field = f"{told.field}_{labels[told.kind]}" if told.kind else told.field
        value = float(sample[3])
        # A backend of several routes is out where it is out of one.
        figures[field] = figures.get(field, 0.0) + value if told.is_sum else max(figures.get(field, -inf), value)
    return found


def _unescaped(sign: re.Match[str]) -> str:
    return "\n" if sign[1] == "n" else sign[1]

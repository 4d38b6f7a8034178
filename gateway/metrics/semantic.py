"""Metrics of the semantic cache, copied from what its stages have counted when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. Labels are routes and closed vocabularies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step

if TYPE_CHECKING:
    from gateway.runtime import Runtime
    from policies.cache.semantic.contracts import AnswerStore, PolicyState
    from policies.cache.semantic.semantic import SemanticCache

_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class SemanticMetrics(MetricGroup):
    """Every metric of the semantic cache."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_semantic_")
        counter, gauge = self.counter, self.gauge
        self.lookups = counter("lookups", "Calls that met the semantic cache.", "route", "result")
        self.labels = counter("labels", "Comparisons of answers.", "route", "source", "verdict")
        self.wrong_hits = counter("wrong_hits_found", "Served answers that were found wrong.", "route")
        self.shadows = counter("shadow_calls", "Calls made to check answers that were served.", "route")
        self.predictions = counter("predictions", "Calls sent on with a stored answer to propose.", "route")
        self.spent = counter("spent_tokens", "Tokens spent on checking.", "route", "purpose")
        self.dropped = counter(
            "answers_not_learned",
            "Answers not learned from since too many waited to be compared: no label, and where a bound is promised "
            "not stored.",
            "route",
        )
        self.seconds = self.histogram(
            "stage_seconds",
            "Stages of a look-up; at most 1000 between two scrapes are observed.",
            *("route", "stage"),
            buckets=_BUCKETS,
        )
        self.rate = gauge("wrong_hit_rate", "Estimated wrong answers per look-up.", "route", workers="livemax")
        self.rate_upper = gauge("wrong_hit_rate_upper", "Upper 95 % limit of that rate.", "route", workers="livemax")
        self.rate_bound = gauge("wrong_hit_rate_bound", "What the policy allows it to be.", "route", workers="livemax")
        self.threshold = gauge("threshold", "What a candidate's score has to reach.", "route", workers="livemax")
        self.known = gauge("labels_known", "Labels that decisions rest on.", "route", workers="livemax")
        self.doubt = gauge(
            "in_doubt", "1 where somebody is not served for want of verdicts.", "route", workers="livemax"
        )
        self.entries = gauge("entries", "Stored answers in memory; with Redis, those that wait to be written.")
        self.bytes = gauge("bytes", "Bytes of these.")
        self.gone = gauge("entries_gone", "Stored answers that went, since the start, by the reason.", "why")
        self.store_errors = gauge("store_errors", "Failures of the semantic cache's store since the start.")

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step a route, and one for the store."""
        for route, stage in _stages_of(runtime).items():
            yield partial(self._copy, route, stage)
        if runtime.semantic is not None:
            yield partial(self._copy_store, runtime.semantic.answers)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """A step a route, and one for each that has no semantic cache any more."""
        for route, stage in _stages_of(previous).items():
            yield partial(self._copy, route, stage)
        yield from self.drops("route", _stages_of(previous).keys() - _stages_of(runtime).keys())

    def _copy(self, route: str, stage: SemanticCache) -> None:
        taken = stage.take_tally()
        for result, number in taken.results.items():
            self.lookups.labels(route, result).inc(number)
        for (source, verdict), number in taken.labels.items():
            self.labels.labels(route, source.value, verdict.value).inc(number)
        self.wrong_hits.labels(route).inc(taken.wrong_hits)
        self.shadows.labels(route).inc(taken.shadows)
        self.predictions.labels(route).inc(taken.predictions)
        self.spent.labels(route, "shadow").inc(taken.shadow_tokens)
        self.spent.labels(route, "judge").inc(taken.judge_tokens)
        self.dropped.labels(route).inc(taken.dropped)
        for name, seconds in taken.times:
            self.seconds.labels(route, name).observe(seconds)
        if stage.bound is not None:
            self.rate_bound.labels(route).set(stage.bound)
        learning = stage.book.all()
        if learning:
            self._show(route, [each.state() for each in learning])
            self.doubt.labels(route).set(any(each.is_in_doubt for each in learning))

    def _copy_store(self, answers: AnswerStore) -> None:
        held = answers.statistics()
        self.entries.set(held.entries)
        self.bytes.set(held.bytes)
        self.store_errors.set(held.errors)
        for why in ("evicted", "expired", "rejected", "dropped"):
            self.gone.labels(why).set(getattr(held, why))

    def _show(self, route: str, states: list[PolicyState]) -> None:
        """A route's rate and limit are those of all its tenants together; the threshold is that of the busiest one."""
        busiest = max(states, key=lambda state: state.lookups)
        rate, limit = rates_of(states)
        self.rate.labels(route).set(rate)
        self.rate_upper.labels(route).set(limit)
        self.threshold.labels(route).set(busiest.threshold)
        self.known.labels(route).set(sum(state.labels for state in states))


def rates_of(states: Sequence[PolicyState]) -> tuple[float, float]:
    """Estimated wrong answers per look-up, of all together, and their limit: what each has lately, by how much it is
    asked. All are rarely at their limits at once, so that of all is lower if anything.
    """
    lookups = max(1, sum(state.lookups for state in states))
    return (
        sum(state.wrong_hit_rate * state.lookups for state in states) / lookups,
        sum(state.wrong_hit_rate_upper * state.lookups for state in states) / lookups,
    )


def _stages_of(runtime: Runtime) -> Mapping[str, SemanticCache]:
    return runtime.semantic.stages if runtime.semantic is not None else {}

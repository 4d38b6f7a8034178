"""Metrics of requests, counted by the requests themselves: nothing is looked up per event.

`docs/metrics.md` describes each of them; a test compares the two. Label values come from the policy file or from
closed vocabularies, so the number of series is bounded by configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Histogram

from backends.operations import Operation
from backends.protocol import CacheOutcome, Facts
from backends.stream import StreamEnd
from gateway.metrics.group import MetricGroup, Step, drop_series
from gateway.metrics.tallied_histogram import HistogramTally, TalliedHistogram
from policies.speculation.settings import ExactPolicy

if TYPE_CHECKING:
    from backends.answer_budget import AnswerBudget
    from gateway.http.body_budget import BodyBudget
    from gateway.runtime import Runtime
    from policies.speculation.control.controller import Controller

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
OVERHEAD_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
_MAX_TOKENS = 2**53
"""From here on a float, which is what a counter is, skips numbers."""
_SAVED = frozenset({CacheOutcome.HIT, CacheOutcome.SEMANTIC, CacheOutcome.JOINED})
OTHER = "_other"
"""Stands for a model that the policy file does not name, and for calls that no route took."""


class InHand(Protocol):
    """What a process has in hand."""

    in_flight: int
    bodies: BodyBudget
    answers: AnswerBudget


class RequestMetrics(MetricGroup):
    """Every metric of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_")
        counter, gauge, histogram = self.counter, self.gauge, self._histogram

        on = ("route", "operation", "model")
        self.requests = counter("requests", "Requests answered.", *on, "status")
        self.errors = counter("errors", "Requests that the gateway itself refused or broke off.", "route", "code")
        self.duration = histogram("request_seconds", "From a request's head to the last byte of its answer.", *on)
        self.first_token = histogram("first_token_seconds", "From a request's head to its answer's first event.", *on)
        self.overhead = histogram(
            "overhead_seconds", "From a request's head to its going upstream.", "route", buckets=OVERHEAD_BUCKETS
        )
        self.tokens = counter("tokens", "Tokens as upstreams count them; `cached` is part of `prompt`.", *on, "kind")
        self.saved_tokens = counter("saved_tokens", "Tokens of answers that no upstream was asked for.", *on, "kind")
        self.in_flight = gauge("requests_in_flight", "Requests being answered.")
        self.answer_bytes = gauge(
            "answer_bytes", "Bytes of upstreams' whole answers held, those of less than 64 KiB left out."
        )
        self.body_bytes = gauge("body_bytes", "Bytes of request bodies held, those of less than 16 KiB left out.")
        self.cache_lookups = counter("cache_lookups", "Calls that met a cache.", "route", "layer", "outcome")
        self.stream_ends = counter("stream_end", "Streamed answers by the way they ended.", "route", "how")
        self.attempts = counter("upstream_attempts", "Attempts, the first of a request included.", "route", "backend")
        self.fallbacks = counter("fallbacks", "Requests that another route answered.", "route", "to")
        self.drafts = counter("drafts", "Calls that a smaller backend may answer, by what became.", "route", "outcome")
        self.resumes = counter(
            "resumes", "Streams that broke off, and what became of them.", "route", "backend", "kind", "outcome"
        )
        self.draft_tokens = counter("draft_tokens", "Tokens that were guessed for answers.", "route", "outcome")
        self.drafted_answers = counter("drafted_answers", "Answers with a draft.", "route", "ended")
        self.draft_speed_up = gauge(
            "draft_speed_up", "Time of a token alone over that with drafts.", "route", "backend", workers="livemax"
        )
        self._in_hand: InHand | None = None

    def watch(self, in_hand: InHand) -> None:
        """Show what it has in hand."""
        self._in_hand = in_hand

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """What is in hand, and what drafts bring; the rest is counted by `RouteMetrics` and the observer."""
        if self._in_hand is not None:
            yield partial(self._copy, self._in_hand)
        for where, controller in _controllers(runtime).items():
            yield partial(self._copy_speed_up, where, controller)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """A step for each backend that has no draft on its route any more."""
        for where in _controllers(previous).keys() - _controllers(runtime).keys():
            yield partial(drop_series, self.draft_speed_up, *where)

    def _copy(self, in_hand: InHand) -> None:
        self.in_flight.set(in_hand.in_flight)
        self.answer_bytes.set(in_hand.answers.num_bytes)
        self.body_bytes.set(in_hand.bodies.num_bytes)

    def _copy_speed_up(self, where: tuple[str, str], controller: Controller) -> None:
        self.draft_speed_up.labels(*where).set(controller.gain)

    def _histogram(
        self, name: str, meaning: str, *labels: str, buckets: tuple[float, ...] = SECONDS_BUCKETS
    ) -> TalliedHistogram:
        return self.add(
            TalliedHistogram(self._prefix + name, meaning, labels, buckets=buckets, registry=self._registry)
        )


class RouteMetrics:
    """What one (route, operation, model) has done since the last `flush`, in plain numbers.

    A counter of prometheus_client takes a lock for every step, which would be a tenth of a request's whole cost;
    here a request adds to integers, and the counters and histograms get the sums when somebody looks.
    """

    __slots__ = (
        "_cache",
        "_duration",
        "_ends",
        "_first_token",
        "_labels",
        "_metrics",
        "_overhead",
        "_saved",
        "_statuses",
        "_used",
        "_wait",
    )

    def __init__(self, metrics: RequestMetrics, wait: Histogram, route: str, operation: Operation, model: str) -> None:
        """`wait`: of admission, which knows of a wait by the request alone."""
        self._metrics = metrics
        self._wait = wait
        self._labels = labels = (route, operation.value, model)
        self._duration = HistogramTally(metrics.duration, labels, SECONDS_BUCKETS)
        self._first_token = HistogramTally(metrics.first_token, labels, SECONDS_BUCKETS)
        self._overhead = HistogramTally(metrics.overhead, (route,), OVERHEAD_BUCKETS)
        self._statuses: dict[int, int] = {}
        self._used = [0, 0, 0]
        self._saved = [0, 0, 0]
        self._cache: dict[CacheOutcome, int] = {}
        self._ends: dict[StreamEnd, int] = {}

    def count(self, status: int, facts: Facts, started_at: float, now: float, *, stream: bool) -> None:
        """One finished request; times in seconds. Raises: ValueError, having counted nothing, where tokens are none."""
        usage = facts.usage
        if usage is not None:
            # All three at once: the bits of one that is negative, or too large, are in this too.
            if not 0 <= (usage.prompt_tokens | usage.completion_tokens | usage.cached_tokens) < _MAX_TOKENS:
                raise ValueError("numbers of tokens that cannot be")
            counted = self._saved if facts.cache in _SAVED else self._used
            counted[0] += usage.prompt_tokens
            counted[1] += usage.completion_tokens
            counted[2] += usage.cached_tokens
        self._statuses[status] = self._statuses.get(status, 0) + 1
        self._duration.observe(now - started_at)
        if facts.sent_at is not None:
            self._overhead.observe(facts.sent_at - started_at)
        if stream:
            if facts.first_token_at is not None:
                self._first_token.observe(facts.first_token_at - started_at)
            if facts.stream_end is not None:
                self._ends[facts.stream_end] = self._ends.get(facts.stream_end, 0) + 1
        if facts.waited_s:
            self._wait.labels(self._labels[0]).observe(facts.waited_s)
        if facts.cache is not None:
            self._cache[facts.cache] = self._cache.get(facts.cache, 0) + 1

    @property
    def has_counted(self) -> bool:
        """Whether there is anything to flush."""
        return bool(self._statuses)

    def flush(self) -> None:
        """Add what was counted to the metrics and begin anew. A series begins with the first that it counts."""
        metrics = self._metrics
        route = self._labels[0]
        for status, number in self._statuses.items():
            metrics.requests.labels(*self._labels, str(status)).inc(number)
        for kind, used, saved in zip(("prompt", "completion", "cached"), self._used, self._saved, strict=True):
            if used:
                metrics.tokens.labels(*self._labels, kind).inc(used)
            if saved:
                metrics.saved_tokens.labels(*self._labels, kind).inc(saved)
        for outcome, number in self._cache.items():
            layer = "semantic" if outcome is CacheOutcome.SEMANTIC else "exact"
            metrics.cache_lookups.labels(route, layer, outcome.value).inc(number)
        for how, number in self._ends.items():
            metrics.stream_ends.labels(route, how.value).inc(number)
        for tally in (self._duration, self._overhead, self._first_token):
            tally.flush()
        self._statuses.clear()
        self._cache.clear()
        self._ends.clear()
        self._used = [0, 0, 0]
        self._saved = [0, 0, 0]


def _controllers(runtime: Runtime) -> dict[tuple[str, str], Controller]:
    """Those that watch drafts, by route and backend."""
    drafted = [stack for stack in runtime.stacks.built() if isinstance(stack.policy.speculative, ExactPolicy)]
    if not drafted:
        return {}
    # Imported late: most gateways have no draft.
    from policies.speculation.exact import ExactSpeculation

    stages = [(stack.policy.name, stage) for stack in drafted if (stage := stack.stage(ExactSpeculation)) is not None]
    return {(route, name): controller for route, stage in stages for name, controller in stage.controllers.items()}

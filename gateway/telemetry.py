"""Prometheus metrics: one table of what is measured, children bound once per route, nothing looked up per event.

`docs/metrics.md` describes each of them; a test compares the two. Label values come from the policy file or from
closed vocabularies, so the number of series is bounded by configuration.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from backends.protocol import CacheOutcome, Facts, Operation
from backends.stream import StreamEnd

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
OVERHEAD_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
_SAVED = frozenset({CacheOutcome.HIT, CacheOutcome.JOINED})
OTHER = "_other"
"""Stands for a model that the policy file does not name, and for calls that no route took."""


class Metrics:
    """Every metric of the gateway, on a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        on_route = ("route", "operation", "model")
        self.requests = Counter("slipstream_requests", "Requests answered.", (*on_route, "status"), registry=registry)
        self.errors = Counter(
            "slipstream_errors",
            "Requests that the gateway itself answered with an error.",
            ("route", "code"),
            registry=registry,
        )
        self.duration = Histogram(
            "slipstream_request_seconds", "From the request's head to the last byte of its answer.", on_route,
            buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self.first_token = Histogram(
            "slipstream_first_token_seconds", "From the request's head to the first event of a streamed answer.", on_route,
            buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self.overhead = Histogram(
            "slipstream_overhead_seconds", "The gateway's own part before a request goes upstream.", ("route",),
            buckets=OVERHEAD_BUCKETS, registry=registry,
        )  # fmt: skip
        self.tokens = Counter(
            "slipstream_tokens", "Tokens as the upstream counted them; cached ones are part of the prompt.", (*on_route, "kind"),
            registry=registry,
        )  # fmt: skip
        self.saved_tokens = Counter(
            "slipstream_saved_tokens", "Tokens of answers that came from a cache or a shared call instead of an upstream.",
            (*on_route, "kind"), registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge(
            "slipstream_requests_in_flight",
            "Requests being answered.",
            (),
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.cache_lookups = Counter(
            "slipstream_cache_lookups", "Calls that met a cache.", ("route", "layer", "outcome"), registry=registry
        )
        self.stream_ends = Counter(
            "slipstream_stream_end", "Streamed answers by the way they ended.", ("route", "how"), registry=registry
        )
        self.attempts = Counter(
            "slipstream_upstream_attempts", "Attempts made by answered requests, the first included.", ("route", "backend"),
            registry=registry,
        )  # fmt: skip
        self.fallbacks = Counter(
            "slipstream_fallbacks", "Requests that another route answered.", ("route", "to"), registry=registry
        )
        self.policy_info = Gauge(
            "slipstream_policy_info", "1 for the revision of the policy file that is in force.", ("revision",),
            registry=registry, multiprocess_mode="liveall",
        )  # fmt: skip
        self.policy_reloads = Counter(
            "slipstream_policy_reloads", "Attempts to take over a changed policy file.", ("outcome",), registry=registry
        )
        self.log_lines_dropped = Counter(
            "slipstream_log_lines_dropped",
            "Access log lines dropped because the log's reader is too slow.",
            registry=registry,
        )
        self.backend_in_flight = Gauge(
            "slipstream_backend_in_flight", "Calls a backend is working on.", ("backend",), registry=registry,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self.backend_connections = Gauge(
            "slipstream_backend_connections", "Connections to a backend since start: opened, or reused for another call.",
            ("backend", "kind"), registry=registry, multiprocess_mode="livesum",
        )  # fmt: skip
        self.breaker_open = Gauge(
            "slipstream_breaker_open", "1 while a backend of a route is out of rotation.", ("route", "backend"),
            registry=registry, multiprocess_mode="livemax",
        )  # fmt: skip
        self.store_entries = Gauge(
            "slipstream_cache_entries", "Answers held by the cache of this process.", (), registry=registry,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self.store_bytes = Gauge(
            "slipstream_cache_bytes", "Bytes held by the cache of this process.", (), registry=registry,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self.store_errors = Gauge(
            "slipstream_cache_store_errors", "Failures of the cache's store since start; each was a miss.", (),
            registry=registry, multiprocess_mode="livesum",
        )  # fmt: skip


class RouteMetrics:
    """What one (route, operation, model) has done since the last `flush`, in plain numbers.

    A counter of prometheus_client takes a lock for every step, which would be a tenth of a request's whole cost;
    here a request adds to integers, and the counters get the sums when somebody looks. Histograms are observed at once.
    """

    __slots__ = ("_cache", "_duration", "_ends", "_first_token", "_labels", "_metrics", "_overhead", "_saved", "_statuses", "_used")

    def __init__(self, metrics: Metrics, route: str, operation: Operation, model: str) -> None:
        self._metrics = metrics
        self._labels = labels = (route, operation.value, model)
        self._duration = metrics.duration.labels(*labels)
        self._first_token = metrics.first_token.labels(*labels)
        self._overhead = metrics.overhead.labels(route)
        self._statuses: dict[int, int] = {}
        self._used = [0, 0, 0]
        self._saved = [0, 0]
        self._cache: dict[CacheOutcome, int] = {}
        self._ends: dict[StreamEnd, int] = {}

    def count(self, status: int, facts: Facts, started_at: float, now: float, *, stream: bool) -> None:
        """One finished request; times in seconds."""
        self._statuses[status] = self._statuses.get(status, 0) + 1
        self._duration.observe(now - started_at)
        if facts.sent_at is not None:
            self._overhead.observe(facts.sent_at - started_at)
        if stream:
            if facts.first_token_at is not None:
                self._first_token.observe(facts.first_token_at - started_at)
            if facts.stream_end is not None:
                self._ends[facts.stream_end] = self._ends.get(facts.stream_end, 0) + 1
        usage = facts.usage
        if usage is not None:
            counted = self._saved if facts.cache in _SAVED else self._used
            counted[0] += usage.prompt_tokens
            counted[1] += usage.completion_tokens
            self._used[2] += usage.cached_tokens
        if facts.cache is not None:
            self._cache[facts.cache] = self._cache.get(facts.cache, 0) + 1

    def flush(self) -> None:
        """Add what was counted to the metrics and begin anew."""
        metrics = self._metrics
        route = self._labels[0]
        for status, number in self._statuses.items():
            metrics.requests.labels(*self._labels, str(status)).inc(number)
        for kind, number in zip(("prompt", "completion", "cached"), self._used, strict=True):
            metrics.tokens.labels(*self._labels, kind).inc(number)
        for kind, number in zip(("prompt", "completion"), self._saved, strict=True):
            metrics.saved_tokens.labels(*self._labels, kind).inc(number)
        for outcome, number in self._cache.items():
            metrics.cache_lookups.labels(route, "exact", outcome.value).inc(number)
        for how, number in self._ends.items():
            metrics.stream_ends.labels(route, how.value).inc(number)
        self._statuses.clear()
        self._cache.clear()
        self._ends.clear()
        self._used = [0, 0, 0]
        self._saved = [0, 0]

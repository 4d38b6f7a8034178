"""One request of a client, from its head to the last byte of its answer, and what is told about it afterwards."""

from __future__ import annotations

from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.protocol import Facts, Operation
from gateway.access_log import AccessLog, Line
from gateway.auth import ANONYMOUS, Principal
from gateway.telemetry import OTHER, Metrics, RouteMetrics

class Exchange:
    """The record of one request; the endpoint fills it in, the observer reads it once."""

    __slots__ = (
        "error",
        "facts",
        "model",
        "model_label",
        "operation",
        "principal",
        "request_id",
        "route",
        "started_at",
        "status",
        "stream",
    )

    def __init__(self, operation: Operation, started_at: float) -> None:
        self.operation = operation
        self.started_at = started_at
        self.request_id = ""
        self.principal: Principal = ANONYMOUS
        self.model = ""
        self.model_label = OTHER
        self.route = OTHER
        self.stream = False
        self.facts = Facts()
        self.status = 0
        self.error: SlipstreamError | None = None


class Observer:
    """Turns finished exchanges into metrics and a log line."""

    def __init__(self, clock: Clock, metrics: Metrics, access_log: AccessLog | None) -> None:
        self._clock = clock
        self._metrics = metrics
        self._log = access_log
        self._routes: dict[tuple[str, Operation, str], RouteMetrics] = {}
        self._attempts: dict[tuple[str, str], int] = {}

    def finished(self, exchange: Exchange) -> None:
        """Count and log one exchange."""
        now = self._clock.now()
        facts = exchange.facts
        labels = (exchange.route, exchange.operation, exchange.model_label)
        route = self._routes.get(labels)
        if route is None:
            route = self._routes[labels] = RouteMetrics(self._metrics, *labels)
        route.count(exchange.status, facts, exchange.started_at, now, stream=exchange.stream)
        if facts.attempts:
            where = (exchange.route, facts.backend or OTHER)
            self._attempts[where] = self._attempts.get(where, 0) + facts.attempts
        if facts.fallback_route is not None:
            self._metrics.fallbacks.labels(exchange.route, facts.fallback_route).inc()
        if exchange.error is not None:
            self._metrics.errors.labels(exchange.route, exchange.error.code or exchange.error.type).inc()
        if self._log is not None:
            self._log.add(self._line(exchange, now))

    def flush(self) -> None:
        """Bring the metrics up to date."""
        for route in self._routes.values():
            route.flush()
        for where, number in self._attempts.items():
            self._metrics.attempts.labels(*where).inc(number)
        self._attempts.clear()

    def _line(self, exchange: Exchange, now: float) -> Line:
        facts = exchange.facts
        line = Line(
            self._clock.wall(),
            exchange.request_id,
            exchange.route,
            exchange.operation,
            exchange.status,
            round((now - exchange.started_at) * 1e3, 3),
            exchange.model,
            exchange.principal.key,
            exchange.principal.tenant,
            facts.backend,
            facts.upstream_model,
            facts.attempts,
            facts.cache,
            facts.fallback_route,
            facts.usage,
        )
        if exchange.stream:
            line.stream_end = facts.stream_end
            if facts.first_token_at is not None:
                line.first_token_ms = round((facts.first_token_at - exchange.started_at) * 1e3, 3)
        if exchange.error is not None:
            line.error = exchange.error.code
        if facts.upstream_request_id is not None:
            line.upstream_request_id = facts.upstream_request_id
        return line

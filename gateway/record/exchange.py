"""The record of one client request and its answer, and the observer that turns records into metrics and log lines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import msgspec

from backends.clock import Clock
from backends.errors import Fault
from backends.operations import Operation
from backends.protocol import Facts, Headers, Priority, Slo
from gateway.http.auth import ANONYMOUS, Principal
from gateway.http.body_budget import HeldBody
from gateway.ledger.row import Beginning
from gateway.metrics.admission import AdmissionMetrics
from gateway.metrics.charges import ChargeMetrics
from gateway.metrics.metrics import Metrics
from gateway.metrics.requests import OTHER, RequestMetrics, RouteMetrics
from gateway.record.access_log import AccessLog, LogLine
from gateway.record.charge_tally import ChargeTally
from gateway.record.slo_outcome import SloOutcome, slo_outcome
from gateway.settings import shares_metrics
from policies.failures import Failures
from policies.limits.limiter import Grant
from policies.prices.source import PriceSource

_BATCH = 64
_RECORD_EVERY_S = 0.1
_FLUSHED_AT_ONCE = 20
"""At ten microseconds each; of more routes at once the others wait for the next time, or for somebody to look."""
_BYTES_PER_TOKEN = 4
_MAX_FOREIGN_CHARS = 256


class Exchange(msgspec.Struct, eq=False):
    """The record of one request: the endpoint fills it in, the observer reads it once. Times are monotonic seconds.

    `error_code` says why the gateway itself refused or aborted the request. It stays None when an upstream answered
    with an error of its own.
    """

    operation: Operation
    started_at: float
    finished_at: float = 0.0
    request_id: str = ""
    principal: Principal = ANONYMOUS
    model: str = ""
    model_label: str = OTHER
    route: str = OTHER
    slo: Slo | None = None
    priority: Priority = Priority.NORMAL
    request_bytes: int = 0
    held_body: HeldBody | None = None
    stream: bool = False
    user: str = ""
    session: str = ""
    """The session or agent run that the client has named."""
    agent: str = ""
    """The family of programs that the client is of."""
    grant: Grant | None = None
    """What the call holds of limits and budgets."""
    asked_prices: PriceSource | None = None
    """What models cost by the list of the route that was asked, whoever answers."""
    rate_headers: Headers = []
    """What its answer says of them."""
    beginning: Beginning | None = None
    """What the ledger knows of it; None where there is none, and where no route took it."""
    facts: Facts = msgspec.field(default_factory=Facts)
    status: int = 0
    error_code: str | None = None
    fault: Fault | None = None
    """Whose fault that error is."""


class Observer:
    """Turns finished exchanges into metrics and log lines, a batch at a time.

    Recording each request at its own end costs about twice as much, because the processor's caches do not hold this
    code then. An exchange that cannot be recorded is dropped, without affecting the others.
    """

    def __init__(self, clock: Clock, metrics: Metrics, access_log: AccessLog | None) -> None:
        self._clock = clock
        self._metrics = metrics.of(RequestMetrics)
        self._admission = metrics.of(AdmissionMetrics)
        self._log = access_log
        self._finished: list[Exchange] = []
        self._routes: dict[tuple[str, Operation, str], RouteMetrics] = {}
        self._attempts: dict[tuple[str, str], int] = {}
        self.charges = ChargeTally(metrics.of(ChargeMetrics))
        self._slo: Counter[tuple[str, SloOutcome]] = Counter()
        self.failures = Failures("observer", clock)

    def finished(self, exchange: Exchange) -> None:
        """Queue an exchange that is over to be recorded."""
        exchange.finished_at = self._clock.now()
        self._finished.append(exchange)
        if len(self._finished) >= _BATCH:
            self._record_finished()

    def flushes(self) -> Iterator[Callable[[], None]]:
        """Steps to run one by one; each is short, and after the last one the metrics are up to date."""
        yield self._record_finished
        for route in list(self._routes.values()):
            if route.has_counted:
                yield route.flush
        for where in list(self._attempts):
            yield partial(self._flush_attempts, where)
        yield from self.charges.flushes()
        for key in list(self._slo):
            yield partial(self._flush_outcome, key)

    def counted(self) -> int:
        """Pico-dollars that attempts have cost since the start, those of calls that are over only now included."""
        self._record_finished()
        return self.charges.counted

    async def run(self) -> None:
        """Record finished exchanges and write the log until cancelled."""
        while True:
            await asyncio.sleep(_RECORD_EVERY_S)
            self._record_finished()
            if shares_metrics():
                # What a worker has not written into the files of all is lost when it is killed, and this is money.
                for step in islice(self.charges.flushes(), _FLUSHED_AT_ONCE):
                    step()
            if self._log is not None:
                self._log.flush()

    def close(self) -> None:
        """Record and write what is left, then close the log. Safe to call twice."""
        self._record_finished()
        if self._log is not None:
            self._log.close()

    def _flush_attempts(self, where: tuple[str, str]) -> None:
        self._metrics.attempts.labels(*where).inc(self._attempts.pop(where, 0))

    def _flush_outcome(self, key: tuple[str, SloOutcome]) -> None:
        self._admission.requests.labels(*key).inc(self._slo.pop(key, 0))

    def _record_finished(self) -> None:
        exchanges, self._finished = self._finished, []
        wall_offset_s = self._clock.wall() - self._clock.now()
        for exchange in exchanges:
            try:
                self._record(exchange, wall_offset_s)
            except Exception as error:  # the border of background work: the other exchanges must be recorded
                self.failures.note(error)

    def _record(self, exchange: Exchange, wall_offset_s: float) -> None:
        outcome = None if exchange.slo is None else outcome_of(exchange)
        self._count(exchange, outcome)
        if self._log is not None:
            line = _log_line(exchange, wall_offset_s)
            line.slo = outcome
            self._log.add(line)

    def _count(self, exchange: Exchange, outcome: SloOutcome | None) -> None:
        facts = exchange.facts
        labels = (exchange.route, exchange.operation, exchange.model_label)
        route = self._routes.get(labels)
        if route is None:
            route = self._routes[labels] = RouteMetrics(self._metrics, self._admission.wait, *labels)
        route.count(exchange.status, facts, exchange.started_at, exchange.finished_at, stream=exchange.stream)
        if facts.attempts:
            where = (exchange.route, facts.backend or OTHER)
            self._attempts[where] = self._attempts.get(where, 0) + facts.attempts
        if facts.charges is not None:
            self.charges.add(exchange.route, facts)
        if outcome is not None:
            self._slo[exchange.route, outcome] += 1
        if facts.speculation is not None:
            told, tokens = facts.speculation, self._metrics.draft_tokens
            self._metrics.drafted_answers.labels(exchange.route, told.ended or "helped").inc()
            tokens.labels(exchange.route, "accepted").inc(told.accepted)
            tokens.labels(exchange.route, "rejected").inc(told.drafted - told.accepted)
        for each in facts.resumed or ():
            self._metrics.resumes.labels(exchange.route, each.backend, each.kind, each.outcome).inc()
        if facts.draft is not None:
            self._metrics.drafts.labels(exchange.route, facts.draft).inc()
        if facts.fallback_route is not None:
            self._metrics.fallbacks.labels(exchange.route, facts.fallback_route).inc()
        if exchange.error_code is not None:
            self._metrics.errors.labels(exchange.route, exchange.error_code).inc()


def outcome_of(exchange: Exchange) -> SloOutcome | None:
    """How a finished exchange that has limits stands to them."""
    assert exchange.slo is not None, "asked for exchanges that have limits"
    return slo_outcome(
        exchange.slo,
        exchange.facts,
        status=exchange.status,
        error_code=exchange.error_code,
        started_at=exchange.started_at,
        finished_at=exchange.finished_at,
        prompt_tokens=exchange.request_bytes // _BYTES_PER_TOKEN,
    )


def bounded(text: str | None) -> str | None:
    """A text from outside, cut to what fits a log line."""
    return text and text[:_MAX_FOREIGN_CHARS]


def _log_line(exchange: Exchange, wall_offset_s: float) -> LogLine:
    facts = exchange.facts
    line = LogLine(
        round(exchange.finished_at + wall_offset_s, 3),
        exchange.request_id,
        exchange.route,
        exchange.operation,
        exchange.status,
        round((exchange.finished_at - exchange.started_at) * 1e3, 3),
        exchange.model,
        exchange.principal.key,
        exchange.principal.tenant,
        facts.backend,
        bounded(facts.upstream_model),
        facts.attempts,
        facts.cache,
        facts.fallback_route,
        facts.usage,
    )
    line.error = exchange.error_code
    if facts.upstream_request_id is not None:
        line.upstream_request_id = bounded(facts.upstream_request_id)
    line.semantic = facts.semantic
    line.draft = facts.draft
    line.speculation = facts.speculation
    if facts.waited_s:
        line.waited_ms = round(facts.waited_s * 1e3, 3)
    if exchange.stream:
        line.stream_end = facts.stream_end
        line.resumed = facts.resumed
        if facts.first_token_at is not None:
            line.first_token_ms = round((facts.first_token_at - exchange.started_at) * 1e3, 3)
    return line

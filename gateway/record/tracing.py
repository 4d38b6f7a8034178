"""OpenTelemetry spans, an optional extra: one server span per request, with its phases and stages as child spans.

Names follow the GenAI semantic conventions (github.com/open-telemetry/semantic-conventions-genai). Without the
extra, or with tracing off, the client's `traceparent` is passed upstream unchanged.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from backends.clock import Clock
from backends.errors import ConfigurationError
from backends.operations import Operation
from backends.protocol import Headers, PassedStage
from gateway.record.exchange import bounded

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from gateway.record.exchange import Exchange

_OPERATION_NAMES = {
    Operation.CHAT: "chat",
    Operation.RESPONSES: "chat",
    Operation.COMPLETION: "text_completion",
    Operation.EMBEDDING: "embeddings",
}
"""In the conventions' words, which have none for what only passes through."""
_CARRIED = (b"traceparent", b"tracestate")
_MAX_CLOSE_S = 3.0


class Tracer:
    """Starts and ends the spans of requests."""

    def __init__(self, provider: TracerProvider, clock: Clock) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("slipstream")
        self._propagator = TraceContextTextMapPropagator()
        self._clock = clock

    def begin(self, exchange: Exchange, headers: Headers) -> tuple[Span, Headers]:
        """Start a span below the client's; returned with the headers, whose trace context is now the new span's."""
        from opentelemetry import trace

        carrier = {name.decode("ascii"): value.decode("latin-1") for name, value in headers if name in _CARRIED}
        parent = self._propagator.extract(carrier)
        span = self._tracer.start_span(
            exchange.operation.value,
            context=parent,
            kind=trace.SpanKind.SERVER,
            start_time=self._wall_ns(exchange.started_at),
        )
        injected: dict[str, str] = {}
        self._propagator.inject(injected, context=trace.set_span_in_context(span, parent))
        exchange.facts.passed_stages = []
        kept = [field for field in headers if field[0] not in _CARRIED]
        kept += [(name.encode("ascii"), value.encode("latin-1")) for name, value in injected.items()]
        return span, kept

    def end(self, span: Span, exchange: Exchange) -> None:
        """End the span; its child spans are made from the times in the exchange's facts.

        Phases follow each other: what was received, waited for, asked for and streamed. Stages lie within them.
        """
        from opentelemetry import trace

        facts = exchange.facts
        now = self._clock.now()
        span.update_name(f"{exchange.operation.value} {exchange.model}".strip())
        span.set_attributes(attributes_of(exchange))
        if exchange.error_code is not None or exchange.status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        context = trace.set_span_in_context(span)
        if facts.sent_at is not None:
            waited_s = facts.waited_s or 0.0
            self._child("receive", context, exchange.started_at, facts.sent_at - waited_s)
            if waited_s:
                self._child("admission", context, facts.sent_at - waited_s, facts.sent_at)
            answered_at = facts.first_token_at or now
            self._child("upstream", context, facts.sent_at, answered_at)
            if exchange.stream and facts.first_token_at is not None:
                self._child("stream", context, facts.first_token_at, now)
        elif facts.waited_s:
            # Nobody was asked: it waited until it was turned away.
            self._child("admission", context, now - facts.waited_s, now)
        for passed in facts.passed_stages or ():
            self._stage(passed, context)
        span.end(self._wall_ns(now))

    def close(self) -> None:
        """Send the queued spans, for seconds at most: a collector that is down must not delay the shutdown."""
        # The provider's own shutdown waits for all of the exporter's retries.
        thread = threading.Thread(target=self._provider.shutdown, name="tracing shutdown", daemon=True)
        thread.start()
        thread.join(_MAX_CLOSE_S)

    def _child(self, name: str, context: Any, start: float, end: float) -> None:
        child = self._tracer.start_span(name, context=context, start_time=self._wall_ns(start))
        child.end(self._wall_ns(end))

    def _stage(self, passed: PassedStage, context: Any) -> None:
        from opentelemetry import trace

        child = self._tracer.start_span(passed.stage, context=context, start_time=self._wall_ns(passed.began_at))
        details = {f"slipstream.{name}": value for name, value in passed.details.items() if value != ""}
        if (error := details.pop("slipstream.error", None)) is not None:
            child.set_attribute("error.type", error)
            child.set_status(trace.StatusCode.ERROR)
        child.set_attributes(details)
        child.end(self._wall_ns(passed.ended_at))

    def _wall_ns(self, at: float) -> int:
        return int((self._clock.wall() - (self._clock.now() - at)) * 1e9)


def otlp_tracer(clock: Clock) -> Tracer:
    """A tracer that exports over OTLP/HTTP, to the address in OpenTelemetry's own OTEL_* variables.

    Raises: ConfigurationError without the extra.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigurationError("tracing needs: pip install 'slipstream-gateway[otel]'") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "slipstream"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider, clock)


def attributes_of(exchange: Exchange) -> dict[str, Any]:
    """What a request's span says: the conventions' own names first, and then ours."""
    facts = exchange.facts
    usage = facts.usage
    values: dict[str, Any] = {
        "gen_ai.operation.name": _OPERATION_NAMES.get(exchange.operation),
        "gen_ai.request.model": exchange.model,
        "gen_ai.request.stream": True if exchange.stream else None,
        "gen_ai.response.model": bounded(facts.upstream_model),
        "http.response.status_code": exchange.status,
        "error.type": exchange.error_code or (str(exchange.status) if exchange.status >= 500 else None),
        "slipstream.request_id": exchange.request_id,
        "slipstream.route": exchange.route,
        "slipstream.backend": facts.backend,
        "slipstream.attempts": facts.attempts,
        "slipstream.cache": facts.cache.value if facts.cache is not None else None,
        "slipstream.fallback": facts.fallback_route,
        "slipstream.stream_end": facts.stream_end.value if facts.stream_end is not None else None,
    }
    if usage is not None:
        # Their input has the cached and the written tokens in it, as ours has.
        values |= {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.cache_creation.input_tokens": usage.written_5m_tokens + usage.written_1h_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        }
    if exchange.stream and facts.first_token_at is not None:
        values["gen_ai.response.time_to_first_chunk"] = facts.first_token_at - exchange.started_at
    return {name: value for name, value in values.items() if value not in (None, "")}

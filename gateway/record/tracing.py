"""OpenTelemetry spans, an optional extra: one server span per request, with its phases as child spans.

Names follow the GenAI semantic conventions (github.com/open-telemetry/semantic-conventions-genai). Without the
extra, or with tracing off, the client's `traceparent` is passed upstream unchanged.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from backends.clock import Clock
from backends.errors import ConfigurationError
from backends.protocol import Headers
from gateway.record.exchange import bounded

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from gateway.record.exchange import Exchange

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
        kept = [field for field in headers if field[0] not in _CARRIED]
        kept += [(name.encode("ascii"), value.encode("latin-1")) for name, value in injected.items()]
        return span, kept

    def end(self, span: Span, exchange: Exchange) -> None:
        """End the span; its child spans are made from the times in the exchange's facts."""
        from opentelemetry import trace

        facts = exchange.facts
        now = self._clock.now()
        span.update_name(f"{exchange.operation.value} {exchange.model}".strip())
        span.set_attributes(_attributes(exchange))
        if exchange.error_code is not None or exchange.status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        context = trace.set_span_in_context(span)
        if facts.sent_at is not None:
            self._child("receive", context, exchange.started_at, facts.sent_at)
            answered_at = facts.first_token_at or now
            self._child("upstream", context, facts.sent_at, answered_at)
            if exchange.stream and facts.first_token_at is not None:
                self._child("stream", context, facts.first_token_at, now)
        elif facts.cache is not None:
            self._child("cache.exact", context, exchange.started_at, now)
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


def _attributes(exchange: Exchange) -> dict[str, Any]:
    facts = exchange.facts
    values = {
        "gen_ai.operation.name": exchange.operation.value,
        "gen_ai.request.model": exchange.model,
        "gen_ai.response.model": bounded(facts.upstream_model),
        "gen_ai.usage.input_tokens": facts.usage.prompt_tokens if facts.usage is not None else None,
        "gen_ai.usage.output_tokens": facts.usage.completion_tokens if facts.usage is not None else None,
        "http.response.status_code": exchange.status,
        "error.type": exchange.error_code,
        "slipstream.request_id": exchange.request_id,
        "slipstream.route": exchange.route,
        "slipstream.backend": facts.backend,
        "slipstream.attempts": facts.attempts,
        "slipstream.cache": facts.cache.value if facts.cache is not None else None,
        "slipstream.stream_end": facts.stream_end.value if facts.stream_end is not None else None,
    }
    return {name: value for name, value in values.items() if value not in (None, "")}

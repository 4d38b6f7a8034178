"""What counts as answered in time, and whether that is possible at all."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from backends.config import format_duration
from backends.errors import ConfigurationError
from backends.simulation.simulated import SimulatedConfig
from gateway.simulate.traces import Trace, TraceRequest
from policies.admission.settings import SloPolicy


def slo_text(slo: SloPolicy) -> str:
    """As `parse_slo` reads it."""
    limits = {name: getattr(slo, name) for name in SloPolicy.model_fields}
    return ",".join(f"{name}={format_duration(value)}" for name, value in limits.items() if value is not None)


def parse_slo(text: str) -> SloPolicy:
    """`ttft=2s,ttft_per_1k_prompt=125ms,tpot=100ms`; what is left out keeps its default.

    Raises: ConfigurationError, naming the field.
    """
    given: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if name not in SloPolicy.model_fields or not sign:
            raise ConfigurationError(
                f'slo: "{part}" is not NAME=DURATION with one of {", ".join(SloPolicy.model_fields)}'
            )
        given[name] = value
    try:
        return SloPolicy.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise ConfigurationError(
            f'slo: {name}: "{given[name]}": {first["msg"].removeprefix("Value error, ")}'
        ) from error


def check_slo(slo: SloPolicy, fleet: Sequence[SimulatedConfig], trace: Trace) -> None:
    """Raises: ConfigurationError, naming the field, where not one request of the trace could ever meet the limits."""
    models = [settings.model() for settings in fleet]
    limits = slo.limits

    def first_token_s(request: TraceRequest) -> float:
        return min(model.step.first_token_s(request.prompt_tokens, model.chunk_tokens) for model in models)

    shortest = min(trace.requests, key=lambda request: request.prompt_tokens)
    if limits.first_token_limit_s(shortest.prompt_tokens) < first_token_s(shortest) and all(
        limits.first_token_limit_s(request.prompt_tokens) < first_token_s(request) for request in trace.requests
    ):
        raise ConfigurationError(
            f"slo: ttft: {format_duration(slo.ttft)} cannot be met: the shortest prompt ({trace.name}:{shortest.line}, "
            f"{shortest.prompt_tokens} tokens) alone on an idle replica takes {1e3 * first_token_s(shortest):.1f} ms"
        )
    gap_s = min(model.step.token_gap_s(shortest.prompt_tokens) for model in models)
    if slo.tpot < gap_s and all(request.output_tokens > 1 for request in trace.requests):
        raise ConfigurationError(
            f"slo: tpot: {format_duration(slo.tpot)} cannot be met: alone on an idle replica a token takes "
            f"{1e3 * gap_s:.1f} ms ({trace.name}:{shortest.line})"
        )

"""What counts as answered in time, and whether that is possible at all."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, ValidationError

from backends.config import Config, Duration, format_duration
from backends.errors import ConfigurationError
from backends.simulated import SimulatedConfig
from gateway.simulate.traces import Trace, TraceRequest


class Slo(Config):
    """Limits of a request: its first token within `ttft` and the prompt's share, the others `tpot` apart on average."""

    ttft: Duration = Field(2.0, gt=0, description="To the first token.")
    ttft_per_1k_prompt: Duration = Field(0.125, ge=0, description="What 1,000 tokens of prompt add to that.")
    tpot: Duration = Field(0.1, gt=0, description="Between tokens after the first, on average.")

    def first_token_limit_s(self, prompt_tokens: int) -> float:
        """Seconds that a prompt of that length may wait."""
        return self.ttft + self.ttft_per_1k_prompt * prompt_tokens / 1000

    def is_met(self, prompt_tokens: int, first_token_s: float, token_gap_s: float) -> bool:
        """Whether an answer with these times was in time."""
        return first_token_s <= self.first_token_limit_s(prompt_tokens) and token_gap_s <= self.tpot

    def text(self) -> str:
        """As `parse_slo` reads it."""
        return ",".join(f"{name}={format_duration(getattr(self, name))}" for name in Slo.model_fields)


def parse_slo(text: str) -> Slo:
    """`ttft=2s,ttft_per_1k_prompt=125ms,tpot=100ms`; what is left out keeps its default.

    Raises: ConfigurationError, naming the field.
    """
    given: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if name not in Slo.model_fields or not sign:
            raise ConfigurationError(f'slo: "{part}" is not NAME=DURATION with one of {", ".join(Slo.model_fields)}')
        given[name] = value
    try:
        return Slo.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise ConfigurationError(
            f'slo: {name}: "{given[name]}": {first["msg"].removeprefix("Value error, ")}'
        ) from error


def check_slo(slo: Slo, fleet: Sequence[SimulatedConfig], trace: Trace) -> None:
    """Raises: ConfigurationError, naming the field, where not one request of the trace could ever meet the limits."""
    models = [settings.model() for settings in fleet]

    def first_token_s(request: TraceRequest) -> float:
        return min(model.step.first_token_s(request.prompt_tokens, model.chunk_tokens) for model in models)

    shortest = min(trace.requests, key=lambda request: request.prompt_tokens)
    if slo.first_token_limit_s(shortest.prompt_tokens) < first_token_s(shortest) and all(
        slo.first_token_limit_s(request.prompt_tokens) < first_token_s(request) for request in trace.requests
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

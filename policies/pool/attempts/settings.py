"""How long an answer may take, and whom else to ask: sections `timeouts`, `retry` and `fallbacks` of a route."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from backends.config import Config, Duration, Name

RetryOn = Literal[
    "connect",
    "first_token_timeout",
    "upstream_cut",
    "rejected_key",
    "unknown_model",
    "408",
    "409",
    "425",
    "429",
    "500",
    "502",
    "503",
    "504",
    "529",
]
FallbackOn = Literal["error", "timeout", "rate_limit", "overload", "context_window", "content_policy"]


class TimeoutsPolicy(Config):
    """How long an answer may take."""

    connect: Duration = Field(5.0, gt=0, description="Waiting for a connection and opening it.")
    first_token: Duration | None = Field(
        None,
        gt=0,
        description="A stream's first event, from the moment it was asked for. Without it 5m, and where the call can "
        "go to another backend or route 10s to 60s: longer for long prompts, and for backends that often take longer.",
    )
    stream_idle: Duration = Field(120.0, gt=0, description="Silence in the middle of a stream.")
    total: Duration = Field(600.0, gt=0, description="The whole call, every attempt included.")


class BackoffPolicy(Config):
    """The wait before another attempt: doubles from `initial` to `max`."""

    initial: Duration = Field(0.1, gt=0, description="The wait before the first retry.")
    max: Duration = Field(5.0, gt=0, description="The longest wait; a longer Retry-After is passed to the client.")
    jitter: float = Field(0.2, ge=0, le=1, description="Random share of the wait, added or taken away.")


class RetryPolicy(Config):
    """Another attempt, only while nothing of the answer has reached the client."""

    attempts: int = Field(2, ge=0, le=10, description="Attempts after the first; 0 turns retries off.")
    on: tuple[RetryOn, ...] | None = Field(
        None,
        description='What is worth another attempt. Without it `connect`, `"429"` and `"503"`, on which no model has '
        "worked, and where the call can go to another backend or route all of them, within the bounds of "
        "docs/resilience.md.",
    )
    backoff: BackoffPolicy = Field(default_factory=BackoffPolicy, description="The wait between attempts.")
    budget_percent: float = Field(
        20.0, ge=0, le=100, description="Retries as a share of the route's calls; over it a failure is final."
    )
    respect_retry_after: bool = Field(
        True, description="Wait as long as the upstream's Retry-After says, up to `backoff.max`."
    )


class FallbacksPolicy(Config):
    """Other routes to ask when this one cannot answer; only before the first byte of an answer."""

    on: tuple[FallbackOn, ...] = Field(
        ("error", "timeout", "rate_limit", "context_window"), min_length=1, description="What sends a call on."
    )
    routes: tuple[Name, ...] = Field(min_length=1, description="Names of routes, tried in this order.")

    def describe(self) -> str:
        """Who is asked and when, in the words of `slipstream explain`."""
        return f"on {', '.join(self.on)}: {', then '.join(f'route {name}' for name in self.routes)}"

"""The part of the policy file that says which backends are left out for a while, when two are asked at once, and when
one goes on with what another began.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from backends.config import Config, Duration, format_duration


class CircuitBreakerPolicy(Config):
    """Takes a backend that keeps failing out of rotation for a while."""

    consecutive_failures: int = Field(5, ge=1, le=1000, description="Failures in a row that open the breaker.")
    error_rate: float = Field(
        0.2, gt=0, le=1, description="Share of failed calls above which it opens, too; 1 looks only at those in a row."
    )
    min_calls: int = Field(20, ge=1, le=100_000, description="Calls below which `error_rate` says nothing.")
    window: Duration = Field(30.0, gt=0, le=3600, description="How far back `error_rate` looks, at most.")
    open_for: Duration = Field(
        10.0,
        gt=0,
        description="How long it stays open before one call may try again; twice that the second time in a row, and so "
        "on up to `max_open_for`.",
    )
    max_open_for: Duration = Field(
        60.0, gt=0, description="The longest that it stays open, however often it has opened."
    )
    half_open_max: int = Field(1, ge=1, le=100, description="Calls let through at once while it is being tried again.")
    max_ejection_percent: int = Field(
        50,
        ge=0,
        le=100,
        description="At most this share of a route's backends is out at once (one always may, if there are others).",
    )
    slow_start: Duration = Field(
        10.0,
        ge=0,
        le=3600,
        description="A backend that comes back, or that a reload adds, takes a share of the calls that grows to its "
        "whole one in this time; `0s` gives it all at once.",
    )

    def describe(self) -> str:
        """When a backend is out and for how long, in the words of `slipstream explain`."""
        rate = f" or over {100 * self.error_rate:g} % of {self.min_calls} calls" if self.error_rate < 1 else ""
        failures = f"{self.consecutive_failures} failures in a row{rate}"
        return f"a backend rests {format_duration(self.open_for)} after {failures}"


class ResumePolicy(Config):
    """Streams of chat and completions that break off in the middle go on at another backend of the route."""

    mode: Literal["exact", "best_effort"] = Field(
        "exact",
        description="`exact` takes only engines of the same weights and settings, which go on behind the very tokens; "
        "`best_effort` also takes servers that continue a last message of the assistant.",
    )
    attempts: int = Field(
        2, ge=1, le=10, description="How often another backend is asked, for all breaks of one answer together."
    )

    def describe(self) -> str:
        """Where a stream goes on, in the words of `slipstream explain`."""
        goes_on = "an engine of the same model" if self.mode == "exact" else "whoever can go on behind its text"
        return f"a stream that breaks off goes on at {goes_on}"


class HedgePolicy(Config):
    """Asks a second backend when the first is late for this very call; the first content of an answer wins."""

    budget: float = Field(0.05, gt=0, le=0.5, description="Calls that may be asked twice, as a share of all.")
    quantile: float = Field(
        0.95,
        ge=0.5,
        lt=1,
        description="A call is late when so many answers of its kind were there, measured in times of the first token "
        "that was predicted for each.",
    )

    @model_validator(mode="after")
    def _can_be_paid(self) -> Self:
        if 1 - self.quantile > self.budget + 1e-9:
            raise ValueError(
                f"quantile {self.quantile:g} makes {1 - self.quantile:.3g} of the calls late, more than the budget of "
                f"{self.budget:g}: it would be spent on those that are hardly late"
            )
        return self

    def describe(self) -> str:
        """Who is asked twice, in the words of `slipstream explain`."""
        return (
            f"a second backend for a call that is later than {100 * self.quantile:g} % of its kind, "
            f"for up to {100 * self.budget:g} % of the calls"
        )

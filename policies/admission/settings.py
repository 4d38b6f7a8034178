"""The part of the policy file that says what answers are in time, and what happens when they cannot all be."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from backends.config import Config, Duration, format_duration
from backends.protocol import Slo

Overload = Literal["shed", "degrade", "queue"]
PriorityName = Literal["high", "normal", "low"]


class SloPolicy(Config):
    """Limits of an answer; how many answers keep them is counted."""

    ttft: Duration = Field(2.0, gt=0, le=3600, description="To the first token.")
    ttft_per_1k_prompt: Duration = Field(0.125, ge=0, le=3600, description="What 1,000 tokens of prompt add to that.")
    tpot: Duration = Field(0.1, gt=0, le=3600, description="Between tokens after the first, on average.")
    total: Duration | None = Field(None, gt=0, le=86400, description="To the end of the answer; no limit if not given.")

    @property
    def limits(self) -> Slo:
        """The same for the calls that it applies to."""
        return Slo(self.ttft, self.ttft_per_1k_prompt, self.tpot, self.total if self.total is not None else math.inf)

    def describe(self) -> str:
        """When an answer is in time, in the words of `slipstream explain`."""
        limits = f"in time: first token within {format_duration(self.ttft)}"
        if self.ttft_per_1k_prompt:
            limits += f" and {format_duration(self.ttft_per_1k_prompt)} for each 1000 tokens of the prompt"
        limits += f", then one every {format_duration(self.tpot)}"
        return limits if self.total is None else f"{limits}, all within {format_duration(self.total)}"


class FairnessPolicy(Config):
    """How callers of one priority share what there is: who has had the fewest tokens is next."""

    by: Literal["tenant", "key", "user"] = Field("tenant", description="Who counts as one caller.")
    weights: dict[str, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        {}, max_length=10_000, description="Shares of callers by their name; 1 where none is given."
    )
    half_life: Duration = Field(
        30.0, gt=0, le=86400, description="After this long a token counts half: past greed is forgiven."
    )
    output_weight: float = Field(2.0, ge=0, le=100, description="What a token of an answer counts, in prompt tokens.")


class AdmissionPolicy(Config):
    """A queue in front of the backends, which keep no more work than they can begin soon. Needs `slo`."""

    on_overload: Overload = Field(
        "shed",
        description="What becomes of a call that cannot be in time: `shed` turns it away at once, `degrade` sends it "
        "to `degrade_to`, `queue` lets it wait, up to `max_wait`.",
    )
    degrade_to: str | None = Field(None, min_length=1, max_length=64, description="For `degrade`: a route.")
    lookahead: float = Field(
        0.1,
        gt=0,
        le=10,
        description="While calls wait: work that a backend may have before the next one is sent there, as a share of "
        "`slo.ttft`. More binds calls to a backend earlier, less may let it run dry.",
    )
    max_wait: Duration = Field(10.0, gt=0, le=3600, description="For `queue`: the longest that a call waits here.")
    max_waiting: int = Field(4096, ge=1, le=1_000_000, description="Calls that may wait at once.")
    max_waiting_tokens: int = Field(
        50_000_000, ge=1, le=10**12, description="Tokens of the prompts that may wait at once."
    )
    fairness: FairnessPolicy = Field(default_factory=FairnessPolicy, description="Who is next.")

    @model_validator(mode="after")
    def _has_where_to_go(self) -> Self:
        if (self.on_overload == "degrade") != (self.degrade_to is not None):
            raise ValueError("on_overload: degrade and degrade_to: ROUTE go together")
        return self

    def describe(self) -> str:
        """What becomes of who cannot be in time, in the words of `slipstream explain`."""
        late = {
            "shed": "429",
            "degrade": f"route {self.degrade_to}",
            "queue": f"waits up to {format_duration(self.max_wait)}, then 429",
        }[self.on_overload]
        return f"who cannot be: {late}; up to {self.max_waiting} wait, in turns by {self.fairness.by}"

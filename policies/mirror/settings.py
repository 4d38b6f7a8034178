"""Section `mirror` of a route: to whom copies of calls go, what that may cost, and when the candidate takes over."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from backends.config import Config, Name
from policies.cache.semantic.settings import JudgePolicy


class PromotionPolicy(Config):
    """When the candidate answers the route's calls: once both hold. It is never promoted for want of evidence."""

    margin: float = Field(
        0.05,
        gt=0,
        le=0.5,
        description="A candidate that is right so much more seldom, as a share of all calls, is not to be promoted.",
    )
    errors: float = Field(
        0.001, ge=0.00001, le=0.1, description="How often either decision may be wrong: of a sequential test."
    )
    cost_below: float | None = Field(
        1.0,
        gt=0,
        le=100,
        description="What it may cost at most, as a share of what the route's backends cost: the upper limit of the "
        "estimate; null where that does not matter.",
    )
    max_pairs: int = Field(
        10_000, ge=100, le=1_000_000, description="Pairs of answers after which an open question stays open."
    )


class MirrorPolicy(Config):
    """Sends copies of chats to a candidate, and compares its answers with those that clients have got."""

    to: Name = Field(description="The candidate: a name under `backends`.")
    model: str | None = Field(
        None, min_length=1, max_length=256, description="The model name to ask it for, instead of the client's."
    )
    share: float = Field(0.05, gt=0, le=1, description="Of the calls that are copied.")
    max_daily_tokens: int = Field(
        1_000_000,
        ge=1,
        le=10**12,
        description="Tokens that copies may use in 24 hours, in each worker; then they rest.",
    )
    judge: JudgePolicy | None = Field(
        None, description="Who says which of two answers is better; without it only their agreement is shown."
    )
    promote_when: PromotionPolicy | None = Field(
        None, description="When the candidate takes over; without it, it is only watched."
    )

    @model_validator(mode="after")
    def _can_tell_better_from_worse(self) -> Self:
        if self.promote_when is not None and self.judge is None:
            raise ValueError(
                "promote_when needs `judge`: that two answers differ does not say which is better; name a route and a "
                "model that can"
            )
        return self

    def describe(self) -> str:
        """What it does, in the words of `slipstream explain`."""
        rule = self.promote_when
        then = "it is only watched"
        if rule is not None:
            cost = f", and it costs less than {rule.cost_below:g} times as much" if rule.cost_below is not None else ""
            then = f"it takes over when it is not {100 * rule.margin:g} points worse{cost}"
        return f"copies of {100 * self.share:g} % of the calls go to {self.to}; {then}"

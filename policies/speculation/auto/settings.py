"""The part of the policy file that says among which ways a route may choose for each call, and what it has to keep."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from backends.config import Config, Name


class AutoPolicy(Config):
    """For each call the cheapest of what is allowed that is in time and good enough; the route's backends always are.

    Not exact where `draft` is allowed: `quality` says how good all answers together have to be. Each answer says in
    `x-slipstream-stage` who gave it, and in `x-slipstream-action` which way it took.
    """

    mode: Literal["auto"] = Field(description="`auto`: the cheapest way that meets the route's `slo`.")
    allow: tuple[Literal["draft", "elsewhere"], ...] = Field(
        min_length=1,
        max_length=2,
        description="What may be done besides asking the route's backends: let the `draft` answer where that is "
        "calibrated to be good enough, which is not exact; send the call `elsewhere`.",
    )
    draft: Name | None = Field(None, description="The small model: a name under `backends`; with `allow: [draft]`.")
    model: str | None = Field(
        None, min_length=1, max_length=256, description="The model name to ask it for, instead of the client's."
    )
    calibration: str | None = Field(
        None,
        min_length=1,
        description="The file that `slipstream calibrate` has written for this pair; with `allow: [draft]`.",
    )
    quality: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Right answers that have to be left, as a share of the route's own: the lower limit of the "
        "estimate on answers that were held out.",
    )
    elsewhere: tuple[Name, ...] = Field(
        (), max_length=16, description="Routes that may take its calls, a dearer provider, say; with that in `allow`."
    )
    share: float = Field(0.95, gt=0, lt=1, description="How likely in time a way has to be.")
    late_usd_per_s: Annotated[float, Field(ge=0, le=1000)] = Field(
        0.0, description="What a second beyond the limits counts, in dollars, beside what a way costs."
    )

    @model_validator(mode="after")
    def _has_what_it_allows(self) -> Self:
        if ("draft" in self.allow) != (self.draft is not None):
            raise ValueError("give `draft`, a name under `backends`, with allow: [draft], and only there")
        if ("elsewhere" in self.allow) != bool(self.elsewhere):
            raise ValueError("give `elsewhere`, names of routes, with allow: [elsewhere], and only there")
        if self.draft is not None and self.calibration is None:
            raise ValueError(
                "a draft that answers needs `calibration`: run `slipstream calibrate --on labelled.jsonl --out FILE`, "
                "and name that file here; or take `draft` out of `allow`"
            )
        if self.draft is None and (self.calibration is not None or self.model is not None):
            raise ValueError("give `calibration` and `model` with allow: [draft], and only there")
        return self

    def describe(self) -> str:
        """What it does, in the words of `slipstream explain`."""
        ways = ["the route's backends"]
        if self.draft is not None:
            ways.append(f"{self.draft} where that leaves {100 * self.quality:g} % of the quality (not exact)")
        ways += [f"route {name}" for name in self.elsewhere]
        return f"the cheapest that is in time for {100 * self.share:g} %: {', or '.join(ways)}"

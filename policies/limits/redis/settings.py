"""Section `stores.limits` of the policy file: limits and budgets that several processes count together."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from backends.config import Config, Duration

WhenAway = Literal["share", "refuse", "allow"]


class LimitsStore(Config):
    """Of limits and budgets, in Redis."""

    when_away: WhenAway = Field(
        "share",
        description="While Redis does not answer: `share` counts in each process its part of every limit, and of what "
        "was left of every budget, by the number of processes last seen; `refuse` answers 503; `allow` counts nothing.",
    )
    timeout: Duration = Field(0.25, gt=0, le=5, description="A Redis that takes longer to answer is taken to be away.")

"""The part of the policy file that says which of a route's backends takes a call; `schema.py` has the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from backends.config import Config

Balance = Literal[
    "predicted_cost",
    "least_tokens",
    "least_request",
    "p2c",
    "round_robin",
    "consistent_hash",
    "weighted",
    "latency",
    "cost",
]
"""A way of spreading calls, as it is carried out."""
BalanceOrAuto = Literal["auto", Balance]
"""The same as it is written, in one list, so that a wrong word gets one answer."""


class RoutingPolicy(Config):
    """Which of a route's backends takes a call, among those of the lowest priority that are in rotation."""

    policy: BalanceOrAuto = Field(
        "auto",
        description="`predicted_cost`: the shortest predicted wait for the first token, and where the prompt's "
        "beginning is cached. `least_tokens`, `least_request`: the least ahead. `p2c`: the better of two. "
        "`consistent_hash`: the same one for the same beginning. `weighted`, `round_robin`: in turn. `latency`: the "
        "shortest predicted answer. `cost`: the lowest `price`. `auto`: `predicted_cost` among equal weights, else "
        "`weighted`.",
    )
    eta: float = Field(
        2.0,
        ge=0,
        le=100,
        description="Of `predicted_cost`: what computing a prompt costs those who wait behind it, in times of itself.",
    )
    gamma: float = Field(
        0.02, ge=0, le=100, description="Of `predicted_cost`: what an answer costs the other streams of its backend."
    )
    cache_tokens: int = Field(
        400_000,
        ge=0,
        le=50_000_000,
        description="Room of each backend for keys and values, in tokens: how much of past prompts it can still hold.",
    )
    provider_cache: bool = Field(
        False,
        description="Ask providers to keep the beginnings of long prompts: `prompt_cache_key` for backends of type "
        "openai, `cache_control` for anthropic, where the client has set none.",
    )

    def balance(self, members: Iterable[tuple[int, int]]) -> Balance:
        """What `policy` means for members of these priorities and weights: `auto` for `weighted` unless there is a
        choice, and it is one among equal weights."""
        if self.policy != "auto":
            return self.policy
        weights: dict[int, list[int]] = {}
        for priority, weight in members:
            if weight:
                weights.setdefault(priority, []).append(weight)
        has_choice = any(len(group) > 1 for group in weights.values())
        is_even = all(len(set(group)) == 1 for group in weights.values())
        return "predicted_cost" if has_choice and is_even else "weighted"

"""The parts of the policy file about limits and budgets: whom they count together, and how much that may use."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from backends.config import Config, Duration, Name, Secret
from policies.prices.price import PICO_PER_DOLLAR
from policies.time_zone import TimeZoneName

Per = Literal["all", "tenant", "team", "key", "tag", "user", "session", "agent", "model", "route"]
"""Whose calls are counted together."""
_Globs = Annotated[tuple[str, ...], Field(min_length=1)]
MOST_DOLLARS = 9_000_000
"""What fits a counter, everywhere it may be kept."""


def _exact(value: float) -> float:
    if Decimal(repr(value)) * PICO_PER_DOLLAR % 1:
        raise ValueError("an amount of dollars has at most twelve decimals")
    return value


Dollars = Annotated[float, Field(gt=0, le=MOST_DOLLARS), AfterValidator(_exact)]


def pico_of(dollars: float) -> int:
    """Whole pico-dollars, of the number as it is written."""
    return int(Decimal(repr(dollars)) * PICO_PER_DOLLAR)


class ConcernedPolicy(Config):
    """Which calls a rule counts, and which of them together."""

    name: Name = Field(description="Unique; appears in errors, metrics and logs.")
    per: Per = Field(
        "key",
        description="Whose calls are counted together: those of a `key`, of the keys of a `tenant`, a `team` or with "
        "a `tag`, of a `user` (of a tenant, by the body's `user`), a `session` (of a tenant, by a header), an `agent` "
        "(the program that calls), a `model`, a `route`, or `all`. Calls without a team, tag, user or session are not "
        "counted where it is by these.",
    )
    tenants: _Globs = Field(("*",), description="Globs: only calls of these tenants count.")
    teams: _Globs = Field(("*",), description="Globs: only calls of keys of these teams count.")
    keys: _Globs = Field(("*",), description="Globs: only calls with these keys count.")
    tags: _Globs = Field(("*",), description="Globs: only calls of keys with one of these tags count.")
    agents: _Globs = Field(("*",), description="Globs: only calls of these programs count, as the ledger names them.")
    models: _Globs = Field(("*",), description="Globs: only calls for these models count, in whatever case.")
    routes: _Globs = Field(("*",), description="Globs: only calls that these routes take count.")


class LimitTerms(Config):
    """How many calls and tokens in a minute, and how many calls at once."""

    rpm: int | None = Field(None, ge=1, le=100_000_000, description="Requests a minute.")
    tpm: int | None = Field(
        None, ge=1, le=100_000_000_000, description="Tokens a minute, of prompts and answers, that upstreams work on."
    )
    concurrent: int | None = Field(None, ge=1, le=1_000_000, description="Calls at once.")
    burst: Duration = Field(
        6.0,
        gt=0,
        le=3600,
        description="What comes at once after a pause: as much as flows in so long. One request always may.",
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.rpm is None and self.tpm is None and self.concurrent is None:
            raise ValueError("a limit needs `rpm`, `tpm` or `concurrent`")
        return self


class LimitPolicy(ConcernedPolicy, LimitTerms):
    """How many calls and tokens in a minute, and how many calls at once, of whom."""


class BudgetTerms(Config):
    """How many dollars in a day, a week, a month, or in all."""

    usd: Dollars = Field(description="Dollars in each window, up to twelve decimals.")
    every: Literal["day", "week", "month", "total"] = Field(
        "month",
        description="When it begins anew: at midnight, on Mondays, on the first of the month, or never (`total`).",
    )
    time_zone: TimeZoneName | None = Field(None, description="Whose midnight; without it that of the `ledger`, or UTC.")
    warn_at: float = Field(
        0.8, gt=0, le=1, description="A share of it at which a warning goes out: a log line, a metric, and `webhook`."
    )
    on_exceed: Literal["reject", "fallback", "warn"] = Field(
        "reject",
        description="`reject` answers 429 `insufficient_quota`; `fallback` sends calls to a cheaper route; `warn` lets "
        "them go on.",
    )
    fallback: Name | None = Field(
        None, description="Of `on_exceed: fallback`: the cheaper route; what it costs is counted all the same."
    )
    unmetered: Literal["refuse", "allow"] = Field(
        "refuse", description="Calls of which nobody knows what they will cost: `refuse` answers 403."
    )

    @model_validator(mode="after")
    def _knows_where_to_go(self) -> Self:
        if (self.on_exceed == "fallback") != (self.fallback is not None):
            raise ValueError("`on_exceed: fallback` and `fallback: ROUTE` go together")
        return self


class BudgetPolicy(ConcernedPolicy, BudgetTerms):
    """How many dollars in a day, a week, a month, or in all, of whom."""

    webhook: Secret | None = Field(
        None,
        description="A URL as env:NAME or file:PATH, where warnings go too, as JSON by POST, once in each window.",
    )

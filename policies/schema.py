"""The policy file: every section, key, bound and default. Strict: an unknown key anywhere is an error.

The descriptions here are the reference: `docs/policies.md` and the published JSON Schema are made from them.
Reading a file, with its errors and hints, is `policies/policy_file/load.py`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from backends.config import Config, Name
from policies.admission.settings import AdmissionPolicy, SloPolicy
from policies.batches.settings import BatchesStore, BatchPolicy
from policies.batching.settings import BatchingPolicy
from policies.cache.semantic.settings import SemanticStore
from policies.cache.settings import CachePolicy, MemoryStore, RedisStore
from policies.dashboard.settings import DashboardPolicy
from policies.keys.settings import KeyPolicy, KeyStorePolicy
from policies.ledger.settings import LedgerPolicy
from policies.limits.redis.settings import LimitsStore
from policies.limits.settings import BudgetPolicy, LimitPolicy
from policies.matching.settings import MatchPolicy
from policies.mirror.settings import MirrorPolicy
from policies.passthrough.settings import PassthroughPolicy
from policies.pool.attempts.settings import FallbacksPolicy, RetryPolicy, TimeoutsPolicy
from policies.pool.balance.settings import Balance, RoutingPolicy
from policies.pool.settings import CircuitBreakerPolicy, HedgePolicy, ResumePolicy
from policies.prices.price import Price
from policies.prices.settings import PricePolicy, PricesPolicy
from policies.speculation.auto.settings import AutoPolicy
from policies.speculation.settings import PredictedPolicy, RacePolicy, SpeculativePolicy


class RouteBackend(Config):
    """One backend of a route."""

    ref: Name = Field(description="A name under `backends`.")
    model: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="The model name to ask that backend for, instead of the client's.",
    )
    weight: int = Field(
        1,
        ge=0,
        le=1_000_000,
        description="Share of calls among backends of the same priority; 0 takes it out of rotation.",
    )
    priority: int = Field(
        0, ge=0, le=100, description="Lower is asked first; the next is used when nothing of this priority can answer."
    )
    price: PricePolicy | None = Field(
        None,
        description="What it takes, in place of the backend's own `price`: for `routing.policy: cost`, and the ledger.",
    )


class RoutePolicy(Config):
    """What happens to the calls it matches."""

    name: Name = Field(description="Unique; appears in metrics, logs and cache keys.")
    match: MatchPolicy = Field(description="Which calls this route takes.")
    backends: tuple[RouteBackend, ...] = Field(min_length=1, description="Who answers.")
    routing: RoutingPolicy = Field(default_factory=RoutingPolicy, description="Which of them takes a call.")
    slo: SloPolicy | None = Field(None, description="When an answer is in time; without it nobody asks.")
    admission: AdmissionPolicy | None = Field(
        None, description="A queue that turns away what cannot be in time; without it every call goes on at once."
    )
    require_price: bool = Field(
        False, description="Turn away calls for a model that one of its backends has no price for."
    )
    timeouts: TimeoutsPolicy = Field(default_factory=TimeoutsPolicy, description="Time limits.")
    retry: RetryPolicy = Field(default_factory=RetryPolicy, description="Further attempts.")
    circuit_breaker: CircuitBreakerPolicy = Field(
        default_factory=CircuitBreakerPolicy, description="Taking failing backends out."
    )
    hedge: HedgePolicy | None = Field(None, description="Asking a second backend; without this section nobody does.")
    resume: ResumePolicy | None = Field(
        None, description="Going on with streams that break off; without this section they stay broken."
    )
    speculative: SpeculativePolicy | None = Field(
        None, description="A smaller backend that goes first, or beside; without this section there is none."
    )
    mirror: MirrorPolicy | None = Field(
        None, description="Copies of calls for a candidate; without this section nobody gets any."
    )
    fallbacks: FallbacksPolicy | None = Field(None, description="Other routes to ask.")
    cache: CachePolicy | None = Field(None, description="Caching; without this section nothing is cached.")
    passthrough: PassthroughPolicy = Field(
        default_factory=PassthroughPolicy, description="What goes on without being understood here."
    )
    batching: BatchingPolicy | None = Field(
        None, description="Embedding calls of many callers in one; without this section each goes by itself."
    )
    batch: BatchPolicy = Field(
        default_factory=BatchPolicy, description="How lines of /v1/batches are answered: a section, or `provider`."
    )

    @model_validator(mode="after")
    def _has_whom_to_hedge_with(self) -> Self:
        if self.hedge is not None and sum(part.weight > 0 for part in self.backends) < 2:
            raise ValueError("hedge needs a second backend in rotation")
        return self

    @model_validator(mode="after")
    def _has_limits(self) -> Self:
        if self.admission is not None and self.slo is None:
            raise ValueError("admission needs `slo`: what it is to keep")
        return self

    @model_validator(mode="after")
    def _hides_what_is_stored(self) -> Self:
        speculative, cache = self.speculative, self.cache
        shows = isinstance(speculative, PredictedPolicy) and "cache" in speculative.sources
        if shows and cache is not None and cache.semantic is not None and cache.pacing != "off":
            raise ValueError(
                "give cache.pacing, or speculative.sources with `cache`, not both: an answer that comes sooner shows "
                "what is stored"
            )
        return self

    @model_validator(mode="after")
    def _has_a_draft_of_its_own(self) -> Self:
        draft, is_race = self.draft, isinstance(self.speculative, RacePolicy)
        for part in self.backends:
            if draft is not None and part.ref == draft.ref and (is_race or part.model == draft.model):
                raise ValueError(
                    f'the draft "{draft.ref}" is one of the route\'s own backends: name another one under '
                    "`speculative.draft`" + ("" if is_race else ", or give it another `model`")
                )
        return self

    @model_validator(mode="after")
    def _has_what_auto_goes_by(self) -> Self:
        if isinstance(self.speculative, AutoPolicy) and self.slo is None:
            raise ValueError("speculative: mode auto needs `slo`: what answers are in time")
        return self

    @model_validator(mode="after")
    def _mirrors_another(self) -> Self:
        if self.candidate is not None:
            candidate = self.candidate.ref, self.candidate.model
            if candidate in ((part.ref, part.model) for part in self.backends):
                raise ValueError(
                    f'the mirror to "{candidate[0]}" would copy the route to itself: name another backend under '
                    "`mirror.to`, or give it another `model`"
                )
        return self

    @property
    def draft(self) -> RouteBackend | None:
        """The smaller backend that may answer too."""
        if self.speculative is None or isinstance(self.speculative, PredictedPolicy) or self.speculative.draft is None:
            return None
        return RouteBackend(ref=self.speculative.draft, model=self.speculative.model)

    @property
    def candidate(self) -> RouteBackend | None:
        """Who gets copies of its calls."""
        return None if self.mirror is None else RouteBackend(ref=self.mirror.to, model=self.mirror.model)

    @property
    def everybody(self) -> tuple[RouteBackend, ...]:
        """Whoever may be asked for its calls."""
        return (*self.backends, *(part for part in (self.draft, self.candidate) if part is not None))

    @property
    def balance(self) -> Balance:
        """The way its calls are spread among backends of the same priority."""
        return self.routing.balance((part.priority, part.weight) for part in self.backends)


class DefaultsPolicy(Config):
    """Sections that every route takes over unless it has its own."""

    timeouts: TimeoutsPolicy | None = Field(None, description="As in a route.")
    retry: RetryPolicy | None = Field(None, description="As in a route.")
    circuit_breaker: CircuitBreakerPolicy | None = Field(None, description="As in a route.")
    cache: CachePolicy | None = Field(None, description="As in a route.")
    passthrough: PassthroughPolicy | None = Field(None, description="As in a route.")


class StoresPolicy(Config):
    """Where cached answers live. With `redis` every replica shares them; else each process has its own."""

    memory: MemoryStore = Field(default_factory=MemoryStore, description="In this process.")
    redis: RedisStore | None = Field(None, description="In Redis.")
    limits: LimitsStore = Field(
        default_factory=LimitsStore, description="Of limits and budgets, which are counted in Redis where there is one."
    )
    semantic: SemanticStore = Field(
        default_factory=SemanticStore, description="Of the semantic cache, in this process."
    )
    state: str | None = Field(
        None,
        min_length=1,
        description="A folder where what was learned of backends' latencies outlives a restart; without it, it is "
        "learned anew.",
    )
    keys: KeyStorePolicy | None = Field(
        None,
        description="Of keys that are made while the gateway runs; without it there are only those of the file.",
    )
    batches: BatchesStore | None = Field(
        None, description="Of /v1/files and /v1/batches; without this section these paths pass through like others."
    )

    @model_validator(mode="before")
    @classmethod
    def _has_no_former_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and "ledger" in values:
            raise ValueError("`ledger` is called `batches` now: write `stores: {batches: ...}` with the same keys")
        return values


def _with_type(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("a backend is a mapping with at least `type`")
    return value


class BackendPolicy(Config):
    """Something that answers. Further keys depend on `type`; see docs/backends.md."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = Field(
        min_length=1,
        description="The type of backend: openai, anthropic, engine, scripted, simulated, or one that a package adds.",
    )
    price: PricePolicy | None = Field(
        None, description="What it takes, whatever route asks it; a route's own `price` for it counts more."
    )
    priced_as: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Whose list prices it takes, by the name of a provider in the package genai-prices; without it the "
        "provider at `base_url`.",
    )


class Policy(Config):
    """A whole policy file."""

    version: Literal[1] = Field(description="The version of this format.")
    include: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        (),
        description="Further files with `routes`, `keys` and `backends`, added behind this one's in this order: globs "
        "over paths below this file's folder, `teams/*.yaml`; the files of one glob by name. Each has at least one.",
    )
    backends: dict[Name, Annotated[BackendPolicy, BeforeValidator(_with_type)]] = Field(
        min_length=1, description="What answers, by name."
    )
    keys: tuple[KeyPolicy, ...] = Field(
        (), description="Who may call. Without keys the gateway listens on loopback only."
    )
    stores: StoresPolicy = Field(default_factory=StoresPolicy, description="Where cached answers live.")
    ledger: LedgerPolicy | None = Field(
        None, description="A row for every call, to be added up and exported; without this section none is kept."
    )
    dashboard: DashboardPolicy = Field(
        default_factory=DashboardPolicy, description="Who may look at it besides those with a key."
    )
    limits: tuple[LimitPolicy, ...] = Field(
        (), description="How many calls and tokens in a minute, and how many calls at once, of whom; all of them hold."
    )
    budgets: tuple[BudgetPolicy, ...] = Field(
        (), description="How many dollars in a day, a week, a month or in all, of whom; all of them hold."
    )
    prices: PricesPolicy | None = Field(
        None, description="List prices, and the currency; without this section only prices in the file are known."
    )
    defaults: DefaultsPolicy = Field(default_factory=DefaultsPolicy, description="Sections for every route.")
    routes: tuple[RoutePolicy, ...] = Field(min_length=1, description="Tried from top to bottom; the first match wins.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        self.check_whole()
        return self

    @property
    def time_zone(self) -> str:
        """Whose days are counted where nothing else is said."""
        return "UTC" if self.ledger is None else self.ledger.time_zone

    @property
    def has_several_tenants(self) -> bool:
        """Whether keys tell tenants apart, or may while it is in force."""
        return self.stores.keys is not None or len({key.tenant for key in self.keys}) > 1

    @property
    def asks_for_keys(self) -> bool:
        """Whether nobody may call without a key."""
        return bool(self.keys) or self.stores.keys is not None

    def check_whole(self) -> None:
        """What its sections demand of each other. Raises: ValueError."""
        waiting = [route.name for route in self.routes if route.batch.mode == "provider"]
        if waiting and self.stores.batches is None:
            raise ValueError(f'route "{waiting[0]}" has batch: provider, which needs `stores.batches`')

        has_lists = self.prices is not None and self.prices.source != "none"
        for route in self.routes:
            wants = "require_price" if route.require_price else "routing.policy: cost"
            is_auto = isinstance(route.speculative, AutoPolicy)
            wants = "speculative: mode auto" if is_auto else wants
            is_wanted = route.require_price or route.routing.policy == "cost" or is_auto
            asked = list(route.everybody if route.require_price or is_auto else route.backends)
            if isinstance(route.speculative, AutoPolicy):
                others = [other for other in self.routes if other.name in route.speculative.elsewhere]
                asked += [part for other in others for part in other.backends]
            for part in asked:
                if is_wanted and not has_lists and self.price_settings(part) is None:
                    raise ValueError(
                        f'route "{route.name}" has {wants}, and nobody says what "{part.ref}" takes: give that backend '
                        "a `price`"
                    )

    def price_of(self, part: RouteBackend) -> Price | None:
        """What a route's backend takes: as the route says, or else as the backend does."""
        settings = self.price_settings(part)
        if settings is None:
            return None
        usd = self.prices.usd if self.prices is not None else Decimal(1)
        return settings.exact("route" if part.price is not None else "backend", usd)

    def price_settings(self, part: RouteBackend) -> PricePolicy | None:
        """The same as it is written."""
        backend = self.backends.get(part.ref)
        return part.price or (backend.price if backend is not None else None)

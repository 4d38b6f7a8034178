"""Which limits and budgets concern a call, and what they ask of the counters for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

from policies.limits.counters import Rate, Slots, Spend, Want
from policies.limits.settings import MOST_DOLLARS, BudgetPolicy, ConcernedPolicy, LimitPolicy, Per, pico_of
from policies.limits.windows import Window, Windows
from policies.prices.price import PICO_PER_DOLLAR

Kind: TypeAlias = Literal["requests", "tokens", "concurrent", "usd"]
UNBOUNDED = MOST_DOLLARS * PICO_PER_DOLLAR
"""What a budget is asked for that refuses nobody."""
_MAX_CALLERS = 100_000


class Asker(msgspec.Struct, frozen=True, gc=False):
    """Who asks for what, as far as rules tell calls apart. `user` and `session` are empty where a call names none."""

    tenant: str
    key: str
    user: str
    session: str
    model: str
    route: str


class RulePart(msgspec.Struct, frozen=True, gc=False):
    """What one want of a call is about: its rule, and what it counts."""

    rule: UsageRule
    kind: Kind


class UsageRule:
    """A limit or a budget."""

    def __init__(self, policy: ConcernedPolicy) -> None:
        self.name = policy.name
        self._who = _WHO[policy.per]
        self._tenants, self._keys = _test(policy.tenants), _test(policy.keys)
        self._models = _test(tuple(glob.casefold() for glob in policy.models))
        self._routes = _test(policy.routes)

    def may_concern(self, tenant: str, key: str) -> bool:
        """Whether calls of that caller may count."""
        return self._tenants(tenant) and self._keys(key)

    def who(self, asker: Asker) -> str | None:
        """With whom a call is counted, for a caller that it may concern; None where it is not counted."""
        if not self._routes(asker.route) or not self._models(asker.model.casefold()):
            return None
        return self._who(asker)


class Limit(UsageRule):
    """How many calls and tokens in a minute, and how many calls at once."""

    def __init__(self, policy: LimitPolicy) -> None:
        super().__init__(policy)
        self._rpm, self._tpm, self._concurrent = policy.rpm, policy.tpm, policy.concurrent
        self._request_room = _capacity(policy.rpm, policy.burst)
        self._token_room = _capacity(policy.tpm, policy.burst)
        self._requests, self._tokens, self._slots = (
            RulePart(self, "requests"),
            RulePart(self, "tokens"),
            RulePart(self, "concurrent"),
        )

    def ask(self, who: str, tokens: int, wants: list[Want], parts: list[RulePart]) -> None:
        """Add what a call of about so many tokens wants."""
        if self._rpm is not None:
            wants.append(Rate(f"rpm:{self.name}:{who}", self._rpm, self._request_room, 1))
            parts.append(self._requests)
        if self._tpm is not None:
            wants.append(Rate(f"tpm:{self.name}:{who}", self._tpm, self._token_room, tokens))
            parts.append(self._tokens)
        if self._concurrent is not None:
            wants.append(Slots(f"concurrent:{self.name}:{who}", self._concurrent))
            parts.append(self._slots)


class Budget(UsageRule):
    """How many dollars in a window."""

    def __init__(self, policy: BudgetPolicy, time_zone: str) -> None:
        super().__init__(policy)
        self.policy = policy
        self.most = pico_of(policy.usd)
        self.warn_at = int(self.most * policy.warn_at)
        self.windows = Windows(policy.every, policy.time_zone or time_zone)
        self.part = RulePart(self, "usd")
        self.key_prefix = f"usd:{policy.name}:"
        self.fallback = policy.fallback
        """The route that takes calls when it is spent."""
        self._refuses = policy.on_exceed != "warn"

    def want(self, who: str, worst: int, wall_s: float, *, is_waived: bool) -> Spend:
        """What a call wants that costs so much at most. Waived, it is counted and not refused."""
        window = self.windows.at(wall_s)
        most = self.most if self._refuses and not is_waived else UNBOUNDED
        return Spend(self.counter(who, window), most, worst, window.ends_at)

    def counter(self, who: str, window: Window) -> str:
        """The key under which that is counted."""
        return f"{self.key_prefix}{who}:{window.name}"

    def who_named(self, tenant: str, name: str) -> str | None:
        """With whom calls of a user or session are counted, whatever else they were; None where none of them is."""
        return _digest(tenant, name) if self._tenants(tenant) else None


class UsageRules:
    """Those of a policy."""

    def __init__(self, limits: Sequence[LimitPolicy], budgets: Sequence[BudgetPolicy], time_zone: str) -> None:
        """`time_zone`: of budgets that name none."""
        self.limits = tuple(Limit(policy) for policy in limits)
        self.budgets = tuple(Budget(policy, time_zone) for policy in budgets)
        self.ask_for_sessions = any(policy.per == "session" for policy in (*limits, *budgets))
        self._of_callers: dict[tuple[str, str], tuple[tuple[Limit, ...], tuple[Budget, ...]]] = {}

    def __bool__(self) -> bool:
        return bool(self.limits or self.budgets)

    def has_budget(self, tenant: str, key: str) -> bool:
        """Whether a caller has one that bears only what is known to cost so much."""
        return any(budget.policy.unmetered == "refuse" for budget in self.of(tenant, key)[1])

    def of(self, tenant: str, key: str) -> tuple[tuple[Limit, ...], tuple[Budget, ...]]:
        """Those that may concern a caller."""
        caller = (tenant, key)
        rules = self._of_callers.get(caller)
        if rules is None:
            if len(self._of_callers) >= _MAX_CALLERS:
                self._of_callers.clear()
            rules = self._of_callers[caller] = (
                tuple(rule for rule in self.limits if rule.may_concern(tenant, key)),
                tuple(rule for rule in self.budgets if rule.may_concern(tenant, key)),
            )
        return rules


def _capacity(per_minute: int | None, burst_s: float) -> int:
    return max(1, int((per_minute or 0) * burst_s / 60))


def _test(globs: Sequence[str]) -> Callable[[str], bool]:
    if "*" in globs:
        return _always
    match = re.compile("|".join(map(translate, globs))).match
    return lambda text: match(text) is not None


def _always(_: str) -> bool:
    return True


def _digest(tenant: str, name: str) -> str | None:
    """A name that a client has chosen, which may be long, within its tenant."""
    if not name:
        return None
    return blake2b(f"{tenant}\0{name}".encode(), digest_size=16).hexdigest()


_WHO: dict[Per, Callable[[Asker], str | None]] = {
    "all": lambda asker: "",
    "tenant": lambda asker: asker.tenant,
    "key": lambda asker: f"{asker.tenant}/{asker.key}",
    "user": lambda asker: _digest(asker.tenant, asker.user),
    "session": lambda asker: _digest(asker.tenant, asker.session),
    "model": lambda asker: asker.model.casefold(),
    "route": lambda asker: asker.route,
}

"""Limits and budgets: which calls each of them counts, and what it asks of the counters for one of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import translate
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

from policies.limits.bursts import burst_of_requests, burst_of_tokens
from policies.limits.counters import INVENTED, Rate, Slots, Spend
from policies.limits.raises import Raises
from policies.limits.settings import MOST_DOLLARS, BudgetPolicy, BudgetTerms, ConcernedPolicy, LimitTerms, Per, pico_of
from policies.limits.windows import Window, Windows
from policies.prices.price import PICO_PER_DOLLAR

_MAX_NAME_CHARS = 256
OWN = "(key)"
"""The name of the rules that a key has of its own; no rule of the policy has brackets in its name."""
UNBOUNDED = MOST_DOLLARS * PICO_PER_DOLLAR
"""What a budget is asked for that refuses nobody: as many pico-dollars as fit a counter, wherever it is kept."""
Reached: TypeAlias = Literal["requests", "tokens", "concurrent", "usd"]
"""What of a rule a call may reach."""


class Asker(msgspec.Struct, frozen=True, gc=False):
    """Who asks for what, as far as rules tell calls apart. `user`, `session` and `team` are empty where there is none.

    `tags` are a key's, with commas between; `agent` is the family of client programs.
    """

    tenant: str
    key: str
    team: str
    tags: str
    user: str
    session: str
    agent: str
    model: str
    route: str


class AskRequests:
    """A request of a bucket of requests."""

    kind: Reached = "requests"

    def __init__(self, rule: UsageRule, key: str, per_minute: int, capacity: int) -> None:
        self.rule = rule
        self.per_minute, self.capacity = per_minute, capacity
        self.want = Rate(key, per_minute, capacity, 1)
        """Always the same."""


class AskTokens:
    """Tokens of a bucket of tokens."""

    kind: Reached = "tokens"

    def __init__(self, rule: UsageRule, key: str, per_minute: int, capacity: int) -> None:
        self.rule = rule
        self.per_minute, self.capacity = per_minute, capacity
        self._key = key

    def want(self, tokens: int) -> Rate:
        """As many as are expected."""
        return Rate(self._key, self.per_minute, self.capacity, tokens)


class AskSlot:
    """A place among calls at once."""

    kind: Reached = "concurrent"

    def __init__(self, rule: UsageRule, key: str, most: int) -> None:
        self.rule = rule
        self.want = Slots(key, most)
        """Always the same."""


class AskDollars:
    """Pico-dollars of a budget, in the window that is open."""

    kind: Reached = "usd"

    def __init__(self, rule: Budget, who: str) -> None:
        self.rule = rule
        self.who = who
        self._key = ""
        self._begins_at = self._until = math.inf
        """Of the window that this is the key of, which was never open yet."""
        self._ends_at: float | None = None

    def want(self, worst: int, wall_s: float, waived: Collection[Budget], raises: Raises) -> Spend:
        """The most that the call may cost. A `waived` budget counts it and refuses it nothing."""
        if not self._begins_at <= wall_s < self._until:
            self._open(wall_s)
        rule = self.rule
        most = rule.bound if not waived or rule not in waived else UNBOUNDED
        if raises.known:
            most = min(most + raises.added(rule.name, self.who, wall_s), UNBOUNDED)
        return Spend(self._key, most, worst, self._ends_at)

    def _open(self, wall_s: float) -> None:
        window = self.rule.windows.at(wall_s)
        self._key = self.rule.counter(self.who, window)
        self._begins_at, self._ends_at = window.begins_at, window.ends_at
        self._until = math.inf if window.ends_at is None else window.ends_at


Ask: TypeAlias = AskRequests | AskTokens | AskSlot | AskDollars


class UsageRule:
    """A limit or a budget. `whom`: which calls count, and which of them together; None for those of one key."""

    def __init__(self, name: str, whom: ConcernedPolicy | None) -> None:
        self.name = name
        self.title = f'"{name}"' if whom is not None else "of this key"
        self._tests = [] if whom is None else [*_tests(whom)]
        per: Per = "key" if whom is None else whom.per
        # Models are those of all tenants; other names that clients choose stand behind that of their tenant.
        self._counted_as = f"{name}:{INVENTED}" if per == "model" else f"{name}:"
        self._who = _WHO[per]
        self.is_of_all = per == "all"
        """Whether all calls that it counts are counted together."""
        self._is_within_tenant = per in ("tenant", "team", "key", "user", "session")
        self.depends_on = frozenset(_FIELDS[per]).union(*(test.fields for test in self._tests))
        """What of an asker decides whether a call counts, and with whom."""

    def whom(self, asker: Asker) -> Sequence[str]:
        """With whom a call is counted: nobody where it is not, several where it has several tags."""
        for test in self._tests:
            if not test(asker):
                return ()
        return self._who(asker)

    def is_of(self, who: str, tenant: str) -> bool:
        """Whether those who are counted together are of that tenant alone."""
        return self._is_within_tenant and who.partition(INVENTED)[0].partition(":")[0] == tenant

    def may_concern(self, caller: Asker) -> bool:
        """Whether calls of that caller may count, whatever they ask for."""
        return all(test(caller) for test in self._tests if test.is_of_callers)

    def asks(self, who: str) -> Iterable[Ask]:
        """What it asks for a call that is counted with those."""
        raise NotImplementedError


class Limit(UsageRule):
    """How many calls and tokens in a minute, and how many calls at once."""

    def __init__(self, name: str, terms: LimitTerms, whom: ConcernedPolicy | None) -> None:
        super().__init__(name, whom)
        self._terms = terms

    def asks(self, who: str) -> Iterable[Ask]:
        """One for each bound."""
        terms, key = self._terms, f"{self._counted_as}{who}"
        if terms.rpm is not None:
            yield AskRequests(self, f"rpm:{key}", terms.rpm, burst_of_requests(terms.rpm, terms.burst))
        if terms.tpm is not None:
            yield AskTokens(self, f"tpm:{key}", terms.tpm, burst_of_tokens(terms.tpm, terms.burst))
        if terms.concurrent is not None:
            yield AskSlot(self, f"concurrent:{key}", terms.concurrent)


class Budget(UsageRule):
    """How many dollars in a window. `bound` is what it refuses calls beyond."""

    def __init__(self, name: str, terms: BudgetTerms, whom: ConcernedPolicy | None, time_zone: str) -> None:
        """`time_zone`: where it names none."""
        super().__init__(name, whom)
        self.terms = terms
        self.webhook = whom.webhook.get_secret_value() if isinstance(whom, BudgetPolicy) and whom.webhook else None
        self.most = pico_of(terms.usd)
        self.bound = self.most if terms.on_exceed != "warn" else UNBOUNDED
        self.warn_at = int(self.most * terms.warn_at)
        self.windows = Windows(terms.every, terms.time_zone or time_zone)
        self.key_prefix = f"usd:{self._counted_as}"

    def asks(self, who: str) -> Iterable[Ask]:
        """One."""
        yield AskDollars(self, who)

    def counter(self, who: str, window: Window) -> str:
        """The key under which that is counted."""
        return f"{self.key_prefix}{who}:{window.name}"


def _tests(whom: ConcernedPolicy) -> Iterable[_Test]:
    """Those that may say no."""
    globs: dict[str, Sequence[str]] = {
        "tenant": whom.tenants,
        "team": whom.teams,
        "key": whom.keys,
        "tags": whom.tags,
        "agent": whom.agents,
        "model": [glob.casefold() for glob in whom.models],
        "route": whom.routes,
    }
    return [_Test(field, wanted) for field, wanted in globs.items() if "*" not in wanted]


class _Test:
    """Whether a text that a call has, or one of several, matches one of the globs."""

    def __init__(self, field: str, globs: Sequence[str]) -> None:
        self.fields = (field,)
        self.is_of_callers = field in ("tenant", "team", "key", "tags")
        self._match = re.compile("|".join(map(translate, globs))).match

    def __call__(self, asker: Asker) -> bool:
        (field,) = self.fields
        text: str = getattr(asker, field)
        texts = text.split(",") if field == "tags" else (text.casefold() if field == "model" else text,)
        return any(self._match(each) is not None for each in texts)


def _digest(tenant: str, name: str) -> Sequence[str]:
    """A name that a client has chosen, within its tenant. What is counted anew after a restart is named by the ledger,
    which keeps the beginning of a long one, and in PostgreSQL no NUL.
    """
    name = name[:_MAX_NAME_CHARS].replace("\0", "\ufffd")
    return (f"{tenant}{INVENTED}{blake2b(name.encode(), digest_size=16).hexdigest()}",) if name else ()


def who_of_key(tenant: str, key: str) -> str:
    """By whom the calls of a key are counted together. No name has a colon in it."""
    return f"{tenant}:{key}"


_WHO: dict[Per, Callable[[Asker], Sequence[str]]] = {
    "all": lambda asker: ("",),
    "tenant": lambda asker: (asker.tenant,),
    "team": lambda asker: (f"{asker.tenant}:{asker.team}",) if asker.team else (),
    "key": lambda asker: (who_of_key(asker.tenant, asker.key),),
    "tag": lambda asker: asker.tags.split(",") if asker.tags else (),
    "user": lambda asker: _digest(asker.tenant, asker.user),
    "session": lambda asker: _digest(asker.tenant, asker.session),
    "agent": lambda asker: (asker.agent,),
    "model": lambda asker: (asker.model.casefold(),),
    "route": lambda asker: (asker.route,),
}
_FIELDS: dict[Per, Sequence[str]] = {
    "all": (),
    "tenant": ("tenant",),
    "team": ("tenant", "team"),
    "key": ("tenant", "key"),
    "tag": ("tags",),
    "user": ("tenant", "user"),
    "session": ("tenant", "session"),
    "agent": ("agent",),
    "model": ("model",),
    "route": ("route",),
}

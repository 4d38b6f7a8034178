"""Who is calling: API keys, kept only as hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from hmac import compare_digest
from typing import Any, Protocol

import msgspec

from backends.clock import Clock
from backends.errors import Unauthorized
from backends.protocol import Priority
from policies.keys.settings import KeyPolicy, KeyTerms
from policies.limits.rules import OWN, Budget, Limit, UsageRule
from policies.limits.settings import BudgetTerms, LimitTerms
from policies.matching.globs import ModelSet


class Principal(msgspec.Struct, frozen=True, gc=False):
    """A caller: the name of its key, its tenant, what it may use, and whether it is an operator."""

    key: str
    tenant: str
    models: ModelSet
    admin: bool = False
    priority: Priority = Priority.NORMAL
    routes: frozenset[str] | None = None
    """None: all of them."""
    team: str = ""
    tags: str = ""
    """As the ledger has them, with commas between."""
    expires_at: float | None = None
    """Seconds since the Unix epoch."""
    manages_keys: bool = False
    viewer: bool = False
    """Whether it may see its tenant on the dashboard."""
    rules: tuple[UsageRule, ...] = ()
    """Its limit and its budget, where it has these of its own."""
    drafts: bool = False
    """Whether it may push draft tokens onto its answers."""

    def may_use(self, model: str) -> bool:
        """Whether the key's `models` cover this one."""
        return self.models.covers(model)

    def may_take(self, route: str) -> bool:
        """Whether the key's calls may be taken by the route of that name."""
        return self.routes is None or route in self.routes


ANONYMOUS = Principal("", "default", ModelSet(("*",)), admin=True, drafts=True)
"""Whoever calls a gateway without keys, which only this machine can reach."""


_MAX_SHARED = 20_000


class Callers:
    """Makes callers of what their keys may do. Those with the same models, routes or rules share them.

    Keys come and go for as long as a process lives, each perhaps with a limit of its own, so what is kept to be shared
    is bounded: `max_shared` of each. `time_zone`: of budgets that name none.
    """

    def __init__(self, time_zone: str = "UTC", max_shared: int = _MAX_SHARED) -> None:
        self._time_zone = time_zone
        self._max_shared = max_shared
        self._rules: dict[tuple[LimitTerms | None, BudgetTerms | None], tuple[UsageRule, ...]] = {}
        self._models: dict[tuple[str, ...], ModelSet] = {}
        self._routes: dict[tuple[str, ...], frozenset[str]] = {}

    def of(
        self, name: str, terms: KeyTerms, *, admin: bool = False, manages_keys: bool = False, drafts: bool = False
    ) -> Principal:
        """The caller with the key of that name."""
        caches: tuple[dict[Any, Any], ...] = (self._rules, self._models, self._routes)
        for shared in caches:
            if len(shared) >= self._max_shared:
                shared.clear()
        models = self._models.get(terms.models)
        if models is None:
            models = self._models[terms.models] = ModelSet(terms.models)
        routes = self._routes.setdefault(terms.routes, frozenset(terms.routes)) if terms.routes else None
        return Principal(
            name,
            terms.tenant,
            models,
            admin,
            Priority[terms.priority.upper()],
            routes,
            terms.team or "",
            ",".join(terms.tags),
            terms.expires_at,
            manages_keys,
            terms.viewer,
            self._rules_of(terms),
            drafts,
        )

    def _rules_of(self, terms: KeyTerms) -> tuple[UsageRule, ...]:
        own = (terms.limit, terms.budget)
        if own == (None, None):
            return ()
        rules = self._rules.get(own)
        if rules is None:
            limit = () if terms.limit is None else (Limit(OWN, terms.limit, None),)
            budget = () if terms.budget is None else (Budget(OWN, terms.budget, None, self._time_zone),)
            rules = self._rules[own] = (*limit, *budget)
        return rules


class KeySource(Protocol):
    """Keys that come and go while a policy is in force."""

    def find(self, digest: bytes, /) -> Principal | None:
        """The caller behind the digest of a key."""

    def named(self, name: str, tenant: str, /) -> Principal | None:
        """The caller with a key of that name and tenant."""

    async def look_for(self, secret: bytes, digest: bytes) -> Principal | None:
        """The caller behind a key that `find` does not know. Raises: StoreUnavailable where that cannot be told."""


class ShownKey:
    """What a connection has shown last, and the digest of it: nearly every call of a connection has the same key, and
    to hash that takes longer than all else that is asked of it.
    """

    __slots__ = ("_credentials", "_digest")

    def __init__(self) -> None:
        self._credentials = self._digest = b""

    def digest(self, credentials: bytes) -> bytes:
        """Of the key in these, which are not empty."""
        # A proxy brings several clients over one connection: how long it takes tells none how near it is to another's.
        if not compare_digest(credentials, self._credentials):
            self._digest = digest_of(_bare(credentials))
            self._credentials = credentials
        return self._digest


class Keyring:
    """The keys of one policy, and those of the key store if there is one. A name in both is the policy's.

    A presented key is looked up by its SHA-256, which costs the same for one key and for a hundred thousand, known or
    not. What such a look-up's time could tell is about the digest of what was presented, and a digest near to a known
    one brings nobody nearer to a key. A key that can be guessed stays as guessable as it is: keys should be random.
    """

    def __init__(
        self, keys: Iterable[KeyPolicy], clock: Clock, stored: KeySource | None = None, time_zone: str = "UTC"
    ) -> None:
        self._clock = clock
        self._stored = stored
        self._principals: dict[bytes, Principal] = {}
        self._by_name: dict[tuple[str, str], Principal] = {}
        callers = Callers(time_zone)
        for key in keys:
            principal = callers.of(key.name, key, admin=key.admin, manages_keys=key.manages_keys, drafts=key.drafts)
            self._principals[digest_of(key.key.get_secret_value().encode("utf-8"))] = principal
            self._by_name.setdefault((key.name, key.tenant), principal)
        self._names = frozenset(name for name, _ in self._by_name)
        self.is_open = not self._principals and stored is None
        """Whether anybody may call."""

    def recognise(self, credentials: bytes | None, shown: ShownKey | None = None) -> Principal | None:
        """The caller behind an `authorization` value or a bare key; None where no such key is known here. `shown`: by
        the connection that they came over.

        Raises: Unauthorized where there is none, or one that has expired.
        """
        if self.is_open:
            return ANONYMOUS
        if not credentials:
            raise Unauthorized("no API key, or several that differ: send one as `Authorization: Bearer KEY`")
        digest = digest_of(_bare(credentials)) if shown is None else shown.digest(credentials)
        principal = self._principals.get(digest)
        if principal is None and self._stored is not None:
            principal = self._held(self._stored.find(digest))
        if principal is not None and principal.expires_at is not None and self.has_expired(principal):
            raise Unauthorized("the API key has expired")
        return principal

    async def authenticate(self, credentials: bytes | None) -> Principal:
        """As `recognise`, for a key that may be newer than what is known here.

        Raises: Unauthorized, StoreUnavailable where the key store is away.
        """
        principal = self.recognise(credentials)
        if principal is None and self._stored is not None and credentials:
            key = _bare(credentials)
            if self._held(await self._stored.look_for(key, digest_of(key))) is not None:
                principal = self.recognise(credentials)
        if principal is None:
            raise Unauthorized("the API key is not known here")
        return principal

    def named(self, key: str, tenant: str) -> Principal | None:
        """The caller with a key of that name and tenant, for what outlives the request that it came with; its key may
        have expired meanwhile.
        """
        if self.is_open:
            return ANONYMOUS if (key, tenant) == (ANONYMOUS.key, ANONYMOUS.tenant) else None
        principal = self._by_name.get((key, tenant))
        if principal is None and self._stored is not None:
            principal = self._held(self._stored.named(key, tenant))
        return principal

    def has_expired(self, principal: Principal) -> bool:
        """Whether its key's time is over, by the wall clock as it stands."""
        return principal.expires_at is not None and principal.expires_at <= self._clock.wall()

    def _held(self, stored: Principal | None) -> Principal | None:
        return None if stored is None or stored.key in self._names else stored


def _bare(credentials: bytes) -> bytes:
    return credentials[7:].strip() if credentials[:7].lower() == b"bearer " else credentials.strip()


def digest_of(key: bytes) -> bytes:
    """What a key is known by."""
    return hashlib.sha256(key).digest()

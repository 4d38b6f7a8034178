"""Who comes back from a provider of identities, and what of the dashboard that makes visible."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from secrets import token_urlsafe
from typing import Any

import msgspec

from backends.clock import Clock
from backends.config import NAME_PATTERN
from backends.errors import Unauthorized, UnknownPath
from gateway.dashboard.access import Seal
from gateway.dashboard.oidc.issuer import Issuer, SignInFailed
from gateway.http.auth import Principal
from policies.dashboard.settings import CALLBACK, OidcPolicy, OidcRule
from policies.matching.globs import ModelSet

PENDING_COOKIE = "slipstream_oidc"
VISIT_MARK = "oidc."
"""With this the cookie of somebody begins who has signed in so."""
_PENDING_S = 600
_MAX_PARAMETER = 4096
_MAX_NAME = 100
_NAMES = ("preferred_username", "email", "name", "sub")
_PENDING, _VISIT = b"oidc pending", b"oidc visit"
_NAME = re.compile(NAME_PATTERN)


class _Pending(msgspec.Struct, array_like=True):
    """What somebody takes along to the provider and back. `since`: seconds since the Unix epoch."""

    state: str
    nonce: str
    verifier: str
    since: int


class _Visit(msgspec.Struct, array_like=True):
    """Somebody who has signed in, and by which rule: who loses it loses the sight."""

    name: str
    issuer: str
    claim: str
    value: str
    tenant: str
    since: int


class OidcSignIn:
    """Of one gateway. `seal` is shared by all gateways of a ledger, so who begins at one may end at another."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._provider: Issuer | None = None

    async def begin(self, policy: OidcPolicy | None, seal: Seal) -> tuple[str, str]:
        """Where to send somebody, and the cookie that has to come back with them. Raises: SignInFailed, UnknownPath."""
        provider = self._provider_of(policy)
        pending = _Pending(token_urlsafe(24), token_urlsafe(24), token_urlsafe(48), int(self._clock.wall()))
        url = await provider.authorization_url(pending.state, pending.nonce, pending.verifier)
        return url, seal.sealed(_PENDING, msgspec.json.encode(pending))

    async def end(self, policy: OidcPolicy | None, seal: Seal, query: Mapping[str, str], cookie: str) -> str:
        """The cookie of somebody who has come back. Raises: SignInFailed, UnknownPath."""
        provider = self._provider_of(policy)
        pending = self._pending(seal, cookie)
        if any(len(value) > _MAX_PARAMETER for value in query.values()):
            raise SignInFailed("invalid", "what came back has no end")
        if not hmac.compare_digest(query.get("state", "").encode(), pending.state.encode()):
            raise SignInFailed("invalid", "it is not what was begun here")
        if query.get("iss", provider.policy.issuer) != provider.policy.issuer:
            raise SignInFailed("invalid", "another provider has answered")
        if "error" in query or not query.get("code"):
            raise SignInFailed("refused", f"the provider says {query.get('error', 'nothing')[:100]!r}")
        claims = await provider.claims(query["code"], pending.verifier, pending.nonce)
        for rule in provider.policy.rules:
            tenant = _tenant(rule, claims)
            if tenant is not None and _fits(rule, claims):
                visit = _Visit(
                    _name(claims), provider.policy.issuer, rule.claim, rule.value, tenant, int(self._clock.wall())
                )
                return VISIT_MARK + seal.sealed(_VISIT, msgspec.json.encode(visit))
        raise SignInFailed("nothing", f"no rule lets {_name(claims)!r} see anything")

    def principal(self, policy: OidcPolicy | None, seal: Seal, cookie: str) -> Principal:
        """Who has signed in. Raises: Unauthorized where that was long ago, or no rule is left that lets them look."""
        try:
            visit = msgspec.json.decode(seal.opened(_VISIT, cookie.removeprefix(VISIT_MARK)), type=_Visit)
        except ValueError as error:
            raise Unauthorized("sign in to see the dashboard") from error
        if policy is None or visit.issuer != policy.issuer:
            raise Unauthorized("sign in to see the dashboard")
        if not -60 <= self._clock.wall() - visit.since <= policy.session:
            raise Unauthorized("you signed in long ago: sign in again")
        for rule in policy.rules:
            if (rule.claim, rule.value) == (visit.claim, visit.value):
                tenant = rule.tenant or visit.tenant
                return Principal(
                    f"oidc:{visit.name}",
                    tenant,
                    ModelSet(("*",)),
                    admin=rule.admin,
                    manages_keys=rule.manages_keys,
                    viewer=rule.viewer,
                )
        raise Unauthorized("what let you see the dashboard is not in the policy any more")

    def _pending(self, seal: Seal, cookie: str) -> _Pending:
        try:
            pending = msgspec.json.decode(seal.opened(_PENDING, cookie), type=_Pending)
        except ValueError as error:
            raise SignInFailed("invalid", "it was not begun in this browser") from error
        if not -60 <= self._clock.wall() - pending.since <= _PENDING_S:
            raise SignInFailed("invalid", "it was begun long ago")
        return pending

    def _provider_of(self, policy: OidcPolicy | None) -> Issuer:
        if policy is None:
            raise UnknownPath(f"there is no {CALLBACK}")
        if self._provider is None or self._provider.policy != policy:
            self._provider = Issuer(policy, self._clock)
        return self._provider


def pending_cookie(value: str, *, is_secure: bool) -> str:
    """The field that has a browser keep it until the provider sends it back, which is another site: so it is Lax."""
    age = _PENDING_S if value else 0
    secure = "; Secure" if is_secure else ""
    return f"{PENDING_COOKIE}={value}; Max-Age={age}; Path={CALLBACK}; HttpOnly; SameSite=Lax{secure}"


def _fits(rule: OidcRule, claims: Mapping[str, Any]) -> bool:
    if rule.claim == "email" and claims.get("email_verified") is not True:
        # Anybody may call themselves anything where nobody has looked.
        return False
    value = claims.get(rule.claim)
    return rule.value in value if isinstance(value, list) else value == rule.value


def _tenant(rule: OidcRule, claims: Mapping[str, Any]) -> str | None:
    """None where a claim is to say it and does not."""
    if rule.tenant_of is None:
        return rule.tenant or "default"
    value = claims.get(rule.tenant_of)
    return value if isinstance(value, str) and _NAME.fullmatch(value) else None


def _name(claims: Mapping[str, Any]) -> str:
    found = next((claims[name] for name in _NAMES if isinstance(claims.get(name), str) and claims[name]), "somebody")
    return "".join(sign for sign in found[:_MAX_NAME] if sign.isprintable())

"""Who may see what on the dashboard: a cookie that says which key has signed in, and what that key may see.

The cookie holds the key's name and when it signed in, under a seal, and never the key. The key is looked up at each
request, so one that is revoked or has expired is out at once.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from backends.clock import Clock
from backends.errors import Forbidden, ForeignOrigin, InvalidRequest, Unauthorized
from gateway.http.auth import Keyring, Principal

COOKIE = "slipstream_dashboard"
CSRF_HEADER = "x-slipstream-csrf"
_SIGNED_IN_S = 12 * 3600
_MAX_COOKIE_CHARS = 1024
_PURPOSE = b"dashboard"


class Scope(NamedTuple):
    """What of the ledger somebody sees; the first thing that each question to it is asked with."""

    tenant: str | None
    """None: everybody's."""


class Visitor(NamedTuple):
    """Somebody who looks at the dashboard."""

    name: str
    scope: Scope
    may_manage: bool
    """Keys and raises of budgets."""
    is_admin: bool
    """Whether it looks after the semantic cache and reads the policy."""

    @property
    def sees_all(self) -> bool:
        """Whether what is no single tenant's is shown too: backends, budgets of all, the policy."""
        return self.scope.tenant is None


def visitor_of(principal: Principal) -> Visitor:
    """What the key of a caller may see. Raises: Forbidden where that is nothing."""
    sees_all = principal.admin or principal.manages_keys
    if not sees_all and not principal.viewer:
        raise Forbidden(
            "this key may not see the dashboard: give it `viewer: true` to see its tenant, or `admin: true` to see all"
        )
    scope = Scope(None if sees_all else principal.tenant)
    return Visitor(principal.key, scope, principal.manages_keys, principal.admin)


def check_manages(visitor: Visitor) -> None:
    """Raises: Forbidden for who may not change keys and budgets."""
    if not visitor.may_manage:
        raise Forbidden("this key may not manage keys; one of the policy file with `manages_keys: true` may")


def check_admin(visitor: Visitor) -> None:
    """Raises: Forbidden for who is no operator."""
    if not visitor.is_admin:
        raise Forbidden("this key is no operator's: one of the policy file with `admin: true` may do this")


class _Session(msgspec.Struct, array_like=True):
    key: str
    tenant: str
    since: int
    """Seconds since the Unix epoch."""


class Seal:
    """Of what a browser keeps for the gateway. Who knows the secret can sign in as anybody."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sealed(self, purpose: bytes, payload: bytes) -> str:
        """As a cookie has it."""
        return f"{_text(payload)}.{_text(self._seal(purpose, payload))}"

    def opened(self, purpose: bytes, text: str) -> bytes:
        """What was sealed for that purpose. Raises: ValueError."""
        payload_text, _, seal = text[:_MAX_COOKIE_CHARS].partition(".")
        payload = _bytes(payload_text)
        if not hmac.compare_digest(self._seal(purpose, payload), _bytes(seal)):
            raise ValueError("not sealed here")
        return payload

    def _seal(self, purpose: bytes, payload: bytes) -> bytes:
        return hmac.new(self._secret, purpose + b"\0" + payload, sha256).digest()


class Sessions:
    """Makes cookies of who has signed in with a key, and reads them."""

    def __init__(self, seal: Seal, clock: Clock) -> None:
        self._seal = seal
        self._clock = clock

    def cookie(self, principal: Principal) -> str:
        """The value for one who has signed in now."""
        payload = msgspec.json.encode(_Session(principal.key, principal.tenant, int(self._clock.wall())))
        return self._seal.sealed(_PURPOSE, payload)

    def principal(self, cookie: str, keyring: Keyring) -> Principal:
        """Who has signed in. Raises: Unauthorized where nobody has, not lately, or with a key that is no more."""
        try:
            session = msgspec.json.decode(self._seal.opened(_PURPOSE, cookie), type=_Session)
        except ValueError as error:
            raise Unauthorized("sign in to see the dashboard") from error
        if not -60 <= self._clock.wall() - session.since <= _SIGNED_IN_S:
            raise Unauthorized("you signed in long ago: sign in again")
        principal = keyring.named(session.key, session.tenant)
        if principal is None or keyring.has_expired(principal):
            raise Unauthorized("the key that you signed in with is not valid any more")
        return principal


def set_cookie(value: str, *, is_secure: bool) -> str:
    """The field that has a browser keep it, for the dashboard's own pages alone; empty: forget it."""
    age = _SIGNED_IN_S if value else 0
    secure = "; Secure" if is_secure else ""
    return f"{COOKIE}={value}; Max-Age={age}; Path=/dashboard; HttpOnly; SameSite=Strict{secure}"


def check_write(headers: Mapping[str, str], *, has_token: bool) -> None:
    """A change has to come from the dashboard's own page: no other site can make a browser send these fields.

    Raises: ForeignOrigin, InvalidRequest.
    """
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    is_own = origin is not None and urlsplit(origin).netloc == headers.get("host")
    if site not in (None, "same-origin") or (origin is not None and not is_own) or (site is None and not is_own):
        raise ForeignOrigin("only the dashboard's own page may ask for this")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequest("send it as application/json")
    if has_token and headers.get(CSRF_HEADER) != "1":
        raise ForeignOrigin(f"only the dashboard's own page may ask for this: {CSRF_HEADER} is missing")


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))

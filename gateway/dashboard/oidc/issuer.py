"""A provider of identities: where it sends people, and what it says of who comes back. Nothing of that is believed
before its signature, its names and its times are looked at, and all of it has an end.

After OpenID Connect Core 1.0 (3.1) and Discovery 1.0, RFC 7636 and RFC 9207.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from backends.clock import Clock
from policies.dashboard.settings import OidcPolicy, is_safe

_T = TypeVar("_T")
_WITHIN_S = 10.0
"""For all that is asked for one sign-in."""
_MAX_BYTES = 256 * 1024
_LEEWAY_S = 60
_KEPT_S = 300.0
"""How long what it says of itself is believed; its keys are asked for at each sign-in, so a new one counts at once."""
_MOST_AT_ONCE = 4
_ALGORITHMS = frozenset(
    ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
)
"""Of keys that only the provider has: never `none`, nor one whose key the client knows too."""


class SignInFailed(Exception):
    """`reason`: `away`, `refused` by the provider, or `invalid`, for what it says does not hold."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Told(NamedTuple):
    id_token: str
    keys: Mapping[str, Any]
    algorithms: list[str]


class Issuer:
    """The one that a policy names."""

    def __init__(self, policy: OidcPolicy, clock: Clock) -> None:
        self.policy = policy
        self._clock = clock
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)
        self._described: tuple[float, Mapping[str, Any]] | None = None

    async def authorization_url(self, state: str, nonce: str, verifier: str) -> str:
        """Where somebody signs in, who comes back with `state`. Raises: SignInFailed."""
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        described = await self._within(self._describe())
        asked = {
            "response_type": "code",
            "client_id": self.policy.client_id,
            "redirect_uri": self.policy.redirect_url,
            "scope": " ".join(self.policy.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": create_s256_code_challenge(verifier),
            "code_challenge_method": "S256",
        }
        url = described["authorization_endpoint"]
        return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}"

    async def claims(self, code: str, verifier: str, nonce: str) -> dict[str, Any]:
        """What is said of who has come back with that code. Raises: SignInFailed."""
        told = await self._within(self._exchange(code, verifier))
        # In a thread, for the first time the libraries have to be read from disk.
        return await asyncio.to_thread(self._verified, told, nonce)

    async def _within(self, work: Coroutine[Any, Any, _T]) -> _T:
        """In a place among those who ask, and in time."""
        if self._places.locked():
            work.close()
            raise SignInFailed("away", "too many sign in at once")
        async with self._places:
            try:
                async with asyncio.timeout(_WITHIN_S):
                    return await work
            except TimeoutError as error:
                raise SignInFailed("away", f"the provider takes more than {_WITHIN_S:.0f} s") from error

    async def _exchange(self, code: str, verifier: str) -> _Told:
        described = await self._describe()
        answer = await self._fetch("POST", described["token_endpoint"], self._form(described, code, verifier))
        id_token = answer.get("id_token")
        if not isinstance(id_token, str):
            raise SignInFailed("invalid", "there is no id_token")
        algorithms = _texts(described.get("id_token_signing_alg_values_supported", ["RS256"]))
        return _Told(id_token, await self._fetch("GET", described["jwks_uri"]), algorithms)

    async def _describe(self) -> Mapping[str, Any]:
        if self._described is not None and self._clock.now() - self._described[0] < _KEPT_S:
            return self._described[1]
        found = await self._fetch("GET", f"{self.policy.issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self.policy.issuer:
            raise SignInFailed("invalid", f"the provider calls itself {str(found.get('issuer'))[:200]!r}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not isinstance(found.get(name), str) or not is_safe(found[name]):
                raise SignInFailed("invalid", f"the provider's {name} is no https:// URL")
        self._described = self._clock.now(), found
        return found

    def _form(self, described: Mapping[str, Any], code: str, verifier: str) -> dict[str, str]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.policy.redirect_url,
            "code_verifier": verifier,
            "client_id": self.policy.client_id,
        }
        known = described.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        secret = self.policy.client_secret
        if secret is not None and isinstance(known, list) and "client_secret_basic" not in known:
            form["client_secret"] = secret.get_secret_value()
        return form

    async def _fetch(self, method: str, url: str, form: dict[str, str] | None = None) -> dict[str, Any]:
        import httpx

        secret = self.policy.client_secret
        auth = None
        if form is not None and secret is not None and "client_secret" not in form:
            auth = httpx.BasicAuth(_quoted(self.policy.client_id), _quoted(secret.get_secret_value()))
        body = bytearray()
        try:
            async with (
                httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=_WITHIN_S) as client,
                client.stream(
                    method,
                    url,
                    data=form,
                    auth=auth,
                    headers={"accept": "application/json", "accept-encoding": "identity"},
                ) as response,
            ):
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > _MAX_BYTES:
                        raise SignInFailed("invalid", f"the provider's answer at {url} has no end")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise SignInFailed("away", f"the provider does not answer at {url}: {type(error).__name__}") from error
        if response.status_code != 200:
            is_away = response.status_code >= 500
            raise SignInFailed("away" if is_away else "refused", f"{url} answers with {response.status_code}")
        try:
            return msgspec.json.decode(bytes(body), type=dict[str, Any])
        except (ValueError, RecursionError) as error:
            raise SignInFailed("invalid", f"the provider's answer at {url} is no JSON object") from error

    def _verified(self, told: _Told, nonce: str) -> dict[str, Any]:
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        algorithms = sorted(_ALGORITHMS.intersection(told.algorithms))
        try:
            token = jwt.decode(told.id_token, KeySet.import_key_set(_usable(told.keys)), algorithms=algorithms)
            claims = CodeIDToken(
                token.claims,
                token.header,
                {
                    "iss": {"essential": True, "value": self.policy.issuer},
                    "aud": {"essential": True, "value": self.policy.client_id},
                },
                {"nonce": nonce, "client_id": self.policy.client_id},
            )
            claims.validate(int(self._clock.wall()), _LEEWAY_S)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SignInFailed("invalid", f"the id_token does not hold: {type(error).__name__}: {error}") from error
        return dict(claims)


def _usable(keys: Mapping[str, Any]) -> Any:
    """Those that sign, and are of a kind that is taken: a key that the client knows too would be none."""
    found = keys.get("keys")
    known = [key for key in found if isinstance(key, dict)] if isinstance(found, list) else []
    return {"keys": [key for key in known if key.get("kty") in ("RSA", "EC", "OKP") and key.get("use") != "enc"]}


def _texts(values: object) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _quoted(text: str) -> str:
    """As RFC 6749 (2.3.1) wants names and secrets before they are joined."""
    return urlencode({"": text})[1:]

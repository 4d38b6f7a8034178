"""Sign-in to the dashboard at a provider of identities: a rule says who sees what, and a lie opens nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from backends.clock import SystemClock
from gateway.dashboard.oidc.issuer import Issuer, SignInFailed
from policies.dashboard.settings import OidcPolicy
from tests.support.gateway import Gateway, running_gateway

pytest.importorskip("authlib")

from tests.support.servers.identity_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    IdentityProvider,
    identity_provider,
    shared_key,
    signed_by_somebody,
    signed_with_what_all_know,
    unsigned,
)

POLICY = """
version: 1
ledger: {{url: "sqlite:///{folder}/ledger.sqlite3"}}
dashboard:
  oidc:
    issuer: "{issuer}"
    client_id: slipstream
    client_secret: env:OIDC_SECRET
    redirect_url: "http://127.0.0.1:{port}/dashboard/oidc"
    rules:
      - {{claim: groups, value: operators, admin: true}}
      - {{claim: email, value: lead@acme.test, viewer: true, tenant: acme}}
      - {{claim: groups, value: customers, viewer: true, tenant_of: company}}
backends: {{up: {{type: scripted}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}]
keys: [{{name: app, key: env:APP, tenant: acme}}]
"""
ENVIRON = {"OIDC_SECRET": CLIENT_SECRET, "APP": "sk-app-0123456789"}
OPERATOR = {"sub": "u-1", "preferred_username": "ann", "groups": ["staff", "operators"]}


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    policy = POLICY.format(folder=tmp_path_factory.mktemp("oidc"), issuer=provider.url, port=9)
    with running_gateway(policy, environ=ENVIRON) as running:
        yield running


@pytest.fixture(autouse=True)
def honest(provider: IdentityProvider) -> Iterator[None]:
    """Again, after each test."""
    before = dict(provider.__dict__)
    provider.claims = OPERATOR
    provider.asked.clear()
    yield
    provider.__dict__.update(before)
    provider.answers.clear()


@contextmanager
def begun(gateway: Gateway) -> Iterator[tuple[httpx.Client, str]]:
    """A browser that comes from the provider, and with what the provider sends it back."""
    with httpx.Client(verify=False, base_url=gateway.url, timeout=60) as browser:
        away = browser.get("/dashboard/oidc/begin")
        assert away.status_code == 302, away.text
        back = browser.get(away.headers["location"])
        assert back.status_code == 302, back.text
        yield browser, urlsplit(back.headers["location"]).query


@contextmanager
def signed_in(gateway: Gateway) -> Iterator[tuple[httpx.Client, str]]:
    """A browser that has been there and back, and why it was not let in, if it was not."""
    with begun(gateway) as (browser, query):
        answer = browser.get(f"/dashboard/oidc?{query}")
        assert answer.status_code == 302, answer.text
        yield browser, parse_qs(urlsplit(answer.headers["location"]).query).get("signed_in", [""])[0]


def test_an_operator_signs_in(gateway: Gateway, provider: IdentityProvider) -> None:
    """By a group, with PKCE, a state and a nonce that are other ones each time; the page's cookie is for it alone."""
    with signed_in(gateway) as (browser, reason):
        me = browser.get("/dashboard/api/me").json()
        assert reason == ""
        assert (me["name"], me["tenant"], me["is_admin"], me["may_manage"]) == ("oidc:ann", None, True, False)
        assert browser.get("/dashboard/api/policy").status_code == 200
        assert browser.get("/v1/models").status_code == 401
    with begun(gateway):
        asked = [fields for path, fields in provider.asked if path == "/authorize"]
    assert {fields["code_challenge_method"] for fields in asked} == {"S256"}
    assert all(len({fields[name] for fields in asked}) == 2 for name in ("state", "nonce", "code_challenge"))
    cookie = browser.cookies.get("slipstream_dashboard", path="/dashboard")
    assert cookie is not None


@pytest.mark.parametrize(
    ("claims", "tenant"),
    [
        ({"email": "lead@acme.test", "email_verified": True}, "acme"),
        ({"groups": ["customers"], "company": "blue"}, "blue"),
        ({"groups": "customers", "company": "blue"}, "blue"),
    ],
)
def test_a_viewer_sees_the_tenant_of_its_claims(
    gateway: Gateway, provider: IdentityProvider, claims: dict[str, Any], tenant: str
) -> None:
    """The rule's, or the one that a claim names; and no policy, no backends."""
    provider.claims = {"sub": "u-2", **claims}
    with signed_in(gateway) as (browser, reason):
        assert reason == ""
        assert browser.get("/dashboard/api/me").json()["tenant"] == tenant
        assert browser.get("/dashboard/api/backends").status_code == 404
        assert browser.get("/dashboard/api/policy").status_code == 403


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"groups": ["Operators", "operators "]},
        {"groups": {"operators": True}},
        {"groups": "operators,staff"},
        {"email": "lead@acme.test"},
        {"email": "lead@acme.test", "email_verified": "true"},
        {"groups": ["customers"]},
        {"groups": ["customers"], "company": "a/../b\n"},
        {"groups": ["customers"], "company": ["acme"]},
        {"groups": ["customers"], "company": None},
    ],
)
def test_who_fits_no_rule_sees_nothing(gateway: Gateway, provider: IdentityProvider, claims: dict[str, Any]) -> None:
    """Nor who only nearly does, or says it of itself where nobody has looked."""
    provider.claims = {"sub": "u-3", **claims}
    with signed_in(gateway) as (browser, reason):
        assert reason == "nothing"
        assert browser.get("/dashboard/api/me").status_code == 401


def spoil(**values: object) -> Callable[[IdentityProvider], None]:
    def change(claims: dict[str, Any]) -> None:
        for name, value in values.items():
            if value is None:
                del claims[name]
            else:
                claims[name] = value

    def lie(provider: IdentityProvider) -> None:
        provider.change_token = change

    return lie


def token_by(made: Callable[[IdentityProvider], Callable[[dict[str, Any]], str]]) -> Callable[[IdentityProvider], None]:
    def lie(provider: IdentityProvider) -> None:
        provider.sign = made(provider)

    return lie


def keys_are(keys: object) -> Callable[[IdentityProvider], None]:
    def lie(provider: IdentityProvider) -> None:
        provider.answers["/keys"] = 200, json.dumps(keys).encode()

    return lie


def answer_is(path: str, status: int, body: bytes) -> Callable[[IdentityProvider], None]:
    def lie(provider: IdentityProvider) -> None:
        provider.answers[path] = status, body

    return lie


PAST = int(time.time()) - 7200


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        pytest.param(spoil(nonce="another"), "invalid", id="another nonce"),
        pytest.param(spoil(nonce=None), "invalid", id="no nonce"),
        pytest.param(spoil(aud="somebody-else"), "invalid", id="another audience"),
        pytest.param(spoil(aud=["slipstream", "somebody-else"]), "invalid", id="two audiences and no party"),
        pytest.param(spoil(azp="somebody-else"), "invalid", id="another party"),
        pytest.param(spoil(aud=None), "invalid", id="no audience"),
        pytest.param(spoil(iss="https://other.test"), "invalid", id="another issuer"),
        pytest.param(spoil(exp=PAST, iat=PAST - 60), "invalid", id="expired"),
        pytest.param(spoil(exp=None), "invalid", id="for ever"),
        pytest.param(spoil(exp="tomorrow"), "invalid", id="a text for a time"),
        pytest.param(spoil(nbf=PAST + 14_400), "invalid", id="not yet"),
        pytest.param(spoil(sub=None), "invalid", id="nobody"),
        pytest.param(token_by(lambda _: unsigned), "invalid", id="alg none"),
        pytest.param(token_by(signed_with_what_all_know), "invalid", id="HMAC with the public key"),
        pytest.param(token_by(signed_by_somebody), "invalid", id="another key of the same name"),
        pytest.param(token_by(lambda _: lambda claims: "a.b.c"), "invalid", id="no token"),
        pytest.param(token_by(lambda _: lambda claims: "[" * 100_000), "invalid", id="brackets"),
        pytest.param(keys_are({"keys": []}), "invalid", id="no keys"),
        pytest.param(keys_are({"keys": [shared_key()]}), "invalid", id="a shared key"),
        pytest.param(keys_are({"keys": "all"}), "invalid", id="keys are a text"),
        pytest.param(answer_is("/keys", 200, b"[" * 200_000), "invalid", id="keys without end"),
        pytest.param(answer_is("/token", 200, b" " * 2_000_000), "invalid", id="a huge answer"),
        pytest.param(answer_is("/token", 200, b"\xff\xfe"), "invalid", id="bytes"),
        pytest.param(answer_is("/token", 200, b"{}"), "invalid", id="an empty answer"),
        pytest.param(answer_is("/token", 302, b"{}"), "refused", id="a redirect"),
        pytest.param(answer_is("/token", 400, b'{"error": "invalid_grant"}'), "refused", id="refused"),
        pytest.param(answer_is("/token", 503, b""), "away", id="away"),
    ],
)
def test_no_lie_lets_anybody_in(
    gateway: Gateway, provider: IdentityProvider, lie: Callable[[IdentityProvider], None], reason: str
) -> None:
    """Whatever a provider, or who stands between, says: nobody is signed in, the page says why in its own words."""
    lie(provider)
    with signed_in(gateway) as (browser, said):
        assert said == reason
        assert browser.get("/dashboard/api/me").status_code == 401
    assert "Traceback" not in gateway.stderr


def test_a_key_that_was_rotated_counts_at_once(gateway: Gateway, provider: IdentityProvider) -> None:
    """Of another kind, too; the old one does not any more."""
    old = signed_by_somebody(provider)
    provider.rotate()
    with signed_in(gateway) as (_, reason):
        assert reason == ""
    provider.sign = old
    with signed_in(gateway) as (_, reason):
        assert reason == "invalid"


def test_a_browser_that_has_not_begun_is_not_signed_in(gateway: Gateway) -> None:
    """Nor one that is sent here with somebody else's code, which would sign it in as somebody else; codes work once."""
    with begun(gateway) as (mine, query), httpx.Client(verify=False, base_url=gateway.url) as other:
        assert "signed_in=invalid" in other.get(f"/dashboard/oidc?{query}").headers["location"]
        other.get("/dashboard/oidc/begin")
        assert "signed_in=invalid" in other.get(f"/dashboard/oidc?{query}").headers["location"]
        assert other.get("/dashboard/api/me").status_code == 401
        assert "signed_in=refused" in mine.get("/dashboard/oidc?error=access_denied&" + query).headers["location"]
    with begun(gateway) as (mine, query):
        kept = dict(mine.cookies)
        assert mine.get(f"/dashboard/oidc?{query}").headers["location"] == "/dashboard"
        again = httpx.get(f"{gateway.url}/dashboard/oidc?{query}", cookies=kept)
        assert "signed_in=refused" in again.headers["location"]
    with begun(gateway) as (mine, query):
        other_provider = query.replace("iss=", "iss=https://other.test&was=")
        assert "signed_in=invalid" in mine.get(f"/dashboard/oidc?{other_provider}").headers["location"]


def test_cookies_are_not_taken_for_each_other(gateway: Gateway) -> None:
    """What one takes along to the provider is no sign-in, and neither is a cookie with a letter changed."""
    with begun(gateway) as (browser, query):
        pending = browser.cookies["slipstream_oidc"]
        for forged in (pending, f"oidc.{pending}", "oidc.", "oidc.e30.", "oidc." + "A" * 5000):
            headers = {"cookie": f"slipstream_dashboard={forged}"}
            assert httpx.get(f"{gateway.url}/dashboard/api/me", headers=headers).status_code == 401
        browser.get(f"/dashboard/oidc?{query}")
        good = browser.cookies["slipstream_dashboard"]
        payload, _, seal = good.removeprefix("oidc.").partition(".")
        swapped = payload[:-1] + ("A" if payload[-1] != "A" else "B")
        for forged in (f"oidc.{swapped}.{seal}", good.removeprefix("oidc.")):
            headers = {"cookie": f"slipstream_dashboard={forged}"}
            assert httpx.get(f"{gateway.url}/dashboard/api/me", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "change",
    [
        lambda described: described.update(issuer="https://other.test"),
        lambda described: described.update(token_endpoint="http://other.test/token"),
        lambda described: described.update(jwks_uri="file:///etc/passwd"),
        lambda described: described.pop("authorization_endpoint"),
    ],
)
def test_a_provider_that_describes_itself_wrongly_is_not_asked(
    tmp_path: Path, provider: IdentityProvider, change: Callable[[dict[str, Any]], None]
) -> None:
    """Not a code or a secret is sent anywhere else than to where TLS, or this machine, is."""
    provider.change_description = change
    policy = OidcPolicy.model_validate(
        {
            "issuer": provider.url,
            "client_id": CLIENT_ID,
            "redirect_url": "http://127.0.0.1/dashboard/oidc",
            "rules": [{"claim": "sub", "value": "u-1", "admin": True}],
        }
    )
    with pytest.raises(SignInFailed, match="the provider"):
        asyncio.run(Issuer(policy, SystemClock()).claims("code", "verifier", "nonce"))
    assert [path for path, _ in provider.asked] == ["/.well-known/openid-configuration"]


async def test_who_loses_the_rule_loses_the_sight(tmp_path: Path, provider: IdentityProvider) -> None:
    """At the reload that takes it away; a provider that is away stops nobody who is signed in."""
    policy = POLICY.format(folder=tmp_path, issuer=provider.url, port=9)
    with running_gateway(policy, environ=ENVIRON) as gateway:
        with signed_in(gateway) as (browser, reason):
            assert reason == ""
            provider.answers["/.well-known/openid-configuration"] = 503, b""
            assert browser.get("/dashboard/api/me").status_code == 200
            assert await gateway.reload(policy.replace("value: operators", "value: chiefs"))
            assert browser.get("/dashboard/api/me").status_code == 401
            assert "signed_in=away" in browser.get("/dashboard/oidc/begin").headers["location"]


def test_without_a_provider_there_is_nothing_of_it(tmp_path: Path) -> None:
    """No way in, no address, and the libraries are not read."""
    head, _, rest = POLICY.partition("dashboard:")
    policy = (head + rest[rest.index("backends:") :]).format(folder=tmp_path)
    with running_gateway(policy, environ=ENVIRON) as gateway:
        assert httpx.get(f"{gateway.url}/dashboard/api/sign-in").json() == {"provider": False}
        for path in ("/dashboard/oidc/begin", "/dashboard/oidc?code=1&state=2"):
            assert httpx.get(f"{gateway.url}{path}").status_code == 404
        maps = Path(f"/proc/{gateway.process.pid}/maps").read_text(encoding="utf-8")
        assert "cryptography" not in maps

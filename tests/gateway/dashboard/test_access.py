"""Who sees what: cookies that were not made here say nothing, changes come from the own page alone."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import Forbidden, ForeignOrigin, InvalidRequest, Unauthorized
from gateway.dashboard.access import Scope, Seal, Sessions, check_write, set_cookie, visitor_of
from gateway.http.auth import Keyring
from policies.keys.settings import KeyPolicy
from tests.support.clock import FakeClock

CLOCK = FakeClock()
OWN = {
    "host": "gw:8080",
    "origin": "http://gw:8080",
    "sec-fetch-site": "same-origin",
    "content-type": "application/json",
}


def keyring(clock: FakeClock, *keys: dict[str, object]) -> Keyring:
    environ = {f"KEY_{number}": f"sk-{key['name']}" for number, key in enumerate(keys)}
    written = [{"key": f"env:KEY_{number}", **key} for number, key in enumerate(keys)]
    return Keyring([KeyPolicy.model_validate(key, context={"environ": environ}) for key in written], clock)


def test_a_cookie_is_good_for_twelve_hours_and_as_long_as_its_key() -> None:
    """Not once the key is no more, has another tenant, or the secret is another one."""
    clock = FakeClock()
    ring = keyring(clock, {"name": "boss", "admin": True})
    sessions = Sessions(Seal(b"secret"), clock)
    boss = ring.named("boss", "default")
    assert boss is not None
    cookie = sessions.cookie(boss)

    assert sessions.principal(cookie, ring) is boss
    for other in (keyring(clock, {"name": "other"}), keyring(clock, {"name": "boss", "tenant": "acme"})):
        with pytest.raises(Unauthorized):
            sessions.principal(cookie, other)
    with pytest.raises(Unauthorized):
        Sessions(Seal(b"another"), clock).principal(cookie, ring)
    clock.jump(12 * 3600 + 1)
    with pytest.raises(Unauthorized, match="long ago"):
        sessions.principal(cookie, ring)


@given(st.text(max_size=200) | st.binary(max_size=80).map(lambda raw: base64.urlsafe_b64encode(raw).decode() + ".AAAA"))
def test_cookies_of_somebody_else_are_refused(cookie: str) -> None:
    """Whatever they are made of."""
    with pytest.raises(Unauthorized):
        Sessions(Seal(b"secret"), CLOCK).principal(cookie, keyring(CLOCK, {"name": "boss", "admin": True}))


def test_a_cookie_with_another_name_under_the_same_seal_is_refused() -> None:
    """The seal is of all that it says."""
    ring = keyring(CLOCK, {"name": "boss", "admin": True}, {"name": "web", "viewer": True})
    sessions = Sessions(Seal(b"secret"), CLOCK)
    web = ring.named("web", "default")
    assert web is not None
    _, _, seal = sessions.cookie(web).partition(".")
    payload = msgspec.json.encode(["boss", "default", int(CLOCK.wall())])

    with pytest.raises(Unauthorized):
        sessions.principal(f"{base64.urlsafe_b64encode(payload).decode().rstrip('=')}.{seal}", ring)


def test_what_keys_see() -> None:
    """A viewer its tenant, an admin and who manages keys all; a caller nothing."""
    ring = keyring(
        CLOCK,
        {"name": "boss", "admin": True},
        {"name": "keys", "manages_keys": True},
        {"name": "web", "viewer": True, "tenant": "acme"},
        {"name": "plain"},
    )
    boss, keys, web, plain = (
        ring.named(name, tenant)
        for name, tenant in (("boss", "default"), ("keys", "default"), ("web", "acme"), ("plain", "default"))
    )
    assert boss is not None
    assert keys is not None
    assert web is not None
    assert plain is not None

    assert visitor_of(boss).scope == Scope(None)
    assert not visitor_of(boss).may_manage
    assert (visitor_of(keys).scope, visitor_of(keys).may_manage) == (Scope(None), True)
    assert (visitor_of(web).scope, visitor_of(web).sees_all) == (Scope("acme"), False)
    with pytest.raises(Forbidden, match="viewer: true"):
        visitor_of(plain)


@pytest.mark.parametrize(
    "changed",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil"},
        {"origin": "null"},
        {"origin": "http://evil", "sec-fetch-site": None},
        {"origin": None, "sec-fetch-site": None},
        {"x-slipstream-csrf": None},
    ],
)
def test_changes_that_other_pages_ask_for_are_refused(changed: dict[str, str | None]) -> None:
    """By any one of what a browser says, and where it says nothing."""
    headers = {name: value for name, value in {**OWN, "x-slipstream-csrf": "1", **changed}.items() if value is not None}

    with pytest.raises(ForeignOrigin):
        check_write(headers, has_token=True)


def test_changes_of_the_own_page_are_taken_as_json_alone() -> None:
    """Older browsers send an origin only; forms cannot send JSON."""
    check_write({**OWN, "x-slipstream-csrf": "1"}, has_token=True)
    check_write({name: value for name, value in OWN.items() if name != "sec-fetch-site"}, has_token=False)
    with pytest.raises(InvalidRequest):
        check_write({**OWN, "content-type": "text/plain"}, has_token=False)


def test_cookies_stay_with_the_dashboard() -> None:
    """No script reads them, no other site sends them; over TLS they never go without it."""
    assert set_cookie("v", is_secure=True).endswith("; Path=/dashboard; HttpOnly; SameSite=Strict; Secure")
    assert "Secure" not in set_cookie("v", is_secure=False)
    assert "Max-Age=0" in set_cookie("", is_secure=False)

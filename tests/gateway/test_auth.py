"""The keyring: who is behind a header's value."""

from __future__ import annotations

import gc
import weakref
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr

from backends.clock import SystemClock
from backends.errors import Unauthorized
from gateway.http.auth import ANONYMOUS, Callers, Keyring, ShownKey
from policies.keys.settings import KeyPolicy, KeyTerms
from policies.limits.rules import UsageRule
from policies.limits.settings import LimitTerms
from tests.support.clock import FakeClock
from tests.support.policy.least_time import least_s

CLOCK = SystemClock()
KEYS = [
    KeyPolicy(name="one", key=SecretStr("sk-one"), tenant="red"),
    KeyPolicy(name="two", key=SecretStr("sk-two ü"), models=("gpt-*",)),
]


@pytest.mark.parametrize(
    ("credentials", "name"),
    [
        (b"Bearer sk-one", "one"),
        (b"bearer sk-one", "one"),
        (b"sk-one", "one"),
        (b"  sk-one ", "one"),
        ("Bearer sk-two ü".encode(), "two"),
    ],
)
def test_key_is_found_by_its_value(credentials: bytes, name: str) -> None:
    """With and without the scheme, in any case."""
    assert Keyring(KEYS, CLOCK).recognise(credentials).key == name


@pytest.mark.parametrize(
    "credentials",
    [None, b"", b"Bearer", b"Bearer ", b"Bearer sk-on", b"Bearer sk-one2", b"Basic sk-one", b"\xff", b"SK-ONE"],
)
async def test_anything_else_is_unauthorized(credentials: bytes | None) -> None:
    """Also nearly right keys."""
    with pytest.raises(Unauthorized):
        await Keyring(KEYS, CLOCK).authenticate(credentials)


def test_keyring_without_keys_lets_everybody_in() -> None:
    """As an anonymous caller of the default tenant."""
    keyring = Keyring([], CLOCK)

    assert keyring.is_open
    assert keyring.recognise(None) == keyring.recognise(b"Bearer x") == ANONYMOUS


def test_connection_that_shows_another_key_is_another_caller() -> None:
    """Whatever it has shown before: each time it is the key that came with the call."""
    keyring, shown = Keyring(KEYS, CLOCK), ShownKey()
    came = [b"Bearer sk-one", b"sk-one", b"sk-on", "sk-two \u00fc".encode(), b"sk-one", b"sk-one"]

    callers = [keyring.recognise(credentials, shown) for credentials in came]

    assert [caller and caller.key for caller in callers] == ["one", "one", None, "two", "one", "one"]
    assert Keyring(KEYS[1:], CLOCK).recognise(b"sk-one", shown) is None


def test_keyring_keeps_no_key() -> None:
    """Only hashes: nothing in its memory is the key or a part of it."""
    keyring = Keyring(KEYS, CLOCK)

    assert "sk-one" not in repr(vars(keyring))


@pytest.mark.parametrize(("model", "may"), [("gpt-4o", True), ("gpt-", True), ("claude", False), ("", False)])
def test_models_of_a_key_limit_it(model: str, may: bool) -> None:
    """Globs; a call without a model is only for keys that may use all."""
    one, two = (Keyring(KEYS, CLOCK).recognise(value) for value in (b"sk-one", "sk-two ü".encode()))

    assert two.may_use(model) is may
    assert one.may_use(model)


def test_key_is_found_by_its_name_and_tenant() -> None:
    """For what outlives the request that it came with; a key of another tenant is another key."""
    assert Keyring(KEYS, CLOCK).named("one", "red") == Keyring(KEYS, CLOCK).recognise(b"sk-one")
    assert Keyring(KEYS, CLOCK).named("one", "blue") is None
    assert Keyring(KEYS, CLOCK).named("three", "default") is None
    assert Keyring([], CLOCK).named("", "default") == ANONYMOUS
    assert Keyring(KEYS, CLOCK).named("", "default") is None


def test_key_expires_by_the_clock_on_the_wall() -> None:
    """At its moment and not before; a clock that was wrong for a while and is set right loses no key."""
    clock = _WallClock()
    moment = datetime.fromtimestamp(clock.wall() + 60, UTC)
    keyring = Keyring([KeyPolicy(name="brief", key=SecretStr("sk-brief"), expires=moment)], clock)

    def is_in(jumped_s: float) -> bool:
        clock.jumped_s = jumped_s
        return _is_known(keyring, b"sk-brief")

    assert [is_in(jumped_s) for jumped_s in (0, 59.999, 60, 1e9, 59, -1e9)] == [True, True, False, False, True, True]
    clock.jumped_s = 60
    with pytest.raises(Unauthorized, match="has expired"):
        keyring.recognise(b"sk-brief")


def test_key_for_some_routes_takes_no_other() -> None:
    """One without routes takes all."""
    keys = [
        KeyPolicy(name="one", key=SecretStr("sk-one"), routes=("chat",), tags=("project:a", "b"), team="core"),
        KeyPolicy(name="two", key=SecretStr("sk-two")),
    ]
    one, two = (Keyring(keys, CLOCK).recognise(key) for key in (b"sk-one", b"sk-two"))

    assert (one.may_take("chat"), one.may_take("other"), two.may_take("other")) == (True, False, True)
    assert (one.team, one.tags, two.team, two.tags) == ("core", "project:a,b", "", "")


class _WallClock(FakeClock):
    """A clock that is set, by mistake or rightly."""

    jumped_s = 0.0

    def wall(self) -> float:
        return super().wall() + self.jumped_s


def _is_known(keyring: Keyring, key: bytes) -> bool:
    try:
        return keyring.recognise(key) is not None
    except Unauthorized:
        return False


@pytest.mark.parametrize("key", [b"sk-4999", b"sk-unknown"])
@pytest.mark.timed
def test_key_costs_the_same_among_thousands(key: bytes) -> None:
    """Known or not: nobody burns the gateway's time with keys that it has to compare one by one."""
    keys = [KeyPolicy(name=f"k{number}", key=SecretStr(f"sk-{number}")) for number in range(5000)]
    many, one = Keyring(keys, CLOCK), Keyring(keys[-1:], CLOCK)

    assert _is_known(many, key) is _is_known(one, key)
    assert least_s(lambda: _is_known(many, key)) < 4 * least_s(lambda: _is_known(one, key))
    assert many.named("k4999", "default") == one.named("k4999", "default")
    assert least_s(lambda: many.named("k4999", "default")) < 4 * least_s(lambda: one.named("k4999", "default"))


def test_rules_of_keys_that_are_gone_are_forgotten() -> None:
    """Keys come and go, each with a limit of its own: what is shared does not grow with all there ever were."""
    callers = Callers(max_shared=10)

    def limit_of(number: int) -> weakref.ref[UsageRule]:
        terms = KeyTerms(tenant="t", models=(f"m{number}",), limit=LimitTerms(rpm=number))
        (rule,) = callers.of(f"key-{number}", terms).rules
        return weakref.ref(rule)

    rules = [limit_of(number) for number in range(1, 101)]

    gc.collect()
    assert sum(rule() is not None for rule in rules) <= 10

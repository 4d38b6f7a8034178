"""The keyring: who is behind a header's value."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from backends.errors import Unauthorized
from gateway.http.auth import ANONYMOUS, Keyring
from policies.schema import KeyPolicy
from tests.support.policy.least_time import least_s

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
    assert Keyring(KEYS).authenticate(credentials).key == name


@pytest.mark.parametrize(
    "credentials",
    [None, b"", b"Bearer", b"Bearer ", b"Bearer sk-on", b"Bearer sk-one2", b"Basic sk-one", b"\xff", b"SK-ONE"],
)
def test_anything_else_is_unauthorized(credentials: bytes | None) -> None:
    """Also nearly right keys."""
    with pytest.raises(Unauthorized):
        Keyring(KEYS).authenticate(credentials)


def test_keyring_without_keys_lets_everybody_in() -> None:
    """As an anonymous caller of the default tenant."""
    keyring = Keyring([])

    assert keyring.is_open
    assert keyring.authenticate(None) == keyring.authenticate(b"Bearer x") == ANONYMOUS


def test_keyring_keeps_no_key() -> None:
    """Only hashes: nothing in its memory is the key or a part of it."""
    keyring = Keyring(KEYS)

    assert "sk-one" not in repr(vars(keyring))


@pytest.mark.parametrize(("model", "may"), [("gpt-4o", True), ("gpt-", True), ("claude", False), ("", False)])
def test_models_of_a_key_limit_it(model: str, may: bool) -> None:
    """Globs; a call without a model is only for keys that may use all."""
    one, two = (Keyring(KEYS).authenticate(value) for value in (b"sk-one", "sk-two ü".encode()))

    assert two.may_use(model) is may
    assert one.may_use(model)


def test_key_is_found_by_its_name_and_tenant() -> None:
    """For what outlives the request that it came with; a key of another tenant is another key."""
    assert Keyring(KEYS).named("one", "red") == Keyring(KEYS).authenticate(b"sk-one")
    assert Keyring(KEYS).named("one", "blue") is None
    assert Keyring(KEYS).named("three", "default") is None
    assert Keyring([]).named("", "default") == ANONYMOUS
    assert Keyring(KEYS).named("", "default") is None


def _is_known(keyring: Keyring, key: bytes) -> bool:
    try:
        return keyring.authenticate(key) is not None
    except Unauthorized:
        return False


@pytest.mark.parametrize("key", [b"sk-4999", b"sk-unknown"])
def test_key_costs_the_same_among_thousands(key: bytes) -> None:
    """Known or not: nobody burns the gateway's time with keys that it has to compare one by one."""
    keys = [KeyPolicy(name=f"k{number}", key=SecretStr(f"sk-{number}")) for number in range(5000)]
    many, one = Keyring(keys), Keyring(keys[-1:])

    assert _is_known(many, key) is _is_known(one, key)
    assert least_s(lambda: _is_known(many, key)) < 4 * least_s(lambda: _is_known(one, key))
    assert many.named("k4999", "default") == one.named("k4999", "default")
    assert least_s(lambda: many.named("k4999", "default")) < 4 * least_s(lambda: one.named("k4999", "default"))

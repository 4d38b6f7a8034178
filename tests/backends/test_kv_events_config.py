"""Settings of a backend's feed of KV events: what is refused, and the salts that keep tenants apart."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from pydantic import ValidationError

from backends.http.openai_settings import OpenAIConfig
from backends.kv_events import KvEventsConfig
from tests.support.calls import make_call

GOOD = {"endpoint": "tcp://10.0.0.1:5557", "tokenizer": "/models/m"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"endpoint": "tcp://*:5557"}, "not with \\*"),
        ({"endpoint": "10.0.0.1:5557"}, "tcp://host:port"),
        ({"endpoint": "tcp://10.0.0.1"}, "tcp://host:port"),
        ({"replay": "http://10.0.0.1:5558"}, "tcp://host:port"),
        ({"tokenizer": ""}, "at least 1 character"),
        ({"tokenizer": None}, "valid string"),
        ({"scope": "user"}, "'tenant' or 'global'"),
        ({"replay_endpoint": "tcp://10.0.0.1:5558"}, "not permitted"),
    ],
    ids=lambda value: str(value),
)
def test_kv_events_settings_say_what_is_wrong(change: dict[str, Any], complaint: str) -> None:
    """Each on its own field, below the backend's."""
    with pytest.raises(ValidationError, match=complaint) as raised:
        OpenAIConfig.model_validate({"base_url": "http://h/v1", "kv_events": {**GOOD, **change}})

    assert raised.value.errors()[0]["loc"] == ("kv_events", *change)


@pytest.mark.parametrize(
    "endpoint", ["tcp://10.0.0.1:5557", "tcp://gpu-a.local:1", "tcp://[::1]:5557", "ipc:///run/kv"]
)
def test_kv_events_settings_take_addresses_that_can_be_reached(endpoint: str) -> None:
    """Hosts by name and number, and sockets of this machine."""
    assert KvEventsConfig(endpoint=endpoint, replay=endpoint, tokenizer="m").replay == endpoint


def test_kv_events_salt_is_of_the_tenant_and_of_what_the_client_gave() -> None:
    """No two of them are alike, and no client can give the salt of another tenant."""
    config = KvEventsConfig(endpoint="tcp://h:1", tokenizer="m")
    theirs = config.salt(make_call(tenant="a"))
    calls = [
        make_call(tenant="a"),
        make_call(tenant="b"),
        make_call(tenant="a", extra={"cache_salt": "s"}),
        make_call(tenant="b", extra={"cache_salt": "s"}),
        make_call(tenant="b", extra={"cache_salt": theirs}),
        make_call(tenant="a\0s"),
    ]

    salts = [config.salt(call) for call in calls]

    assert salts[0] == theirs
    assert all(one != other for one, other in combinations(salts, 2))


def test_kv_events_salt_of_all_tenants_together_is_the_client_s_own() -> None:
    """Nothing is added to a call then."""
    config = KvEventsConfig(endpoint="tcp://h:1", tokenizer="m", scope="global")

    assert config.salt(make_call(tenant="a")) == ""
    assert config.salt(make_call(tenant="a", extra={"cache_salt": "s"})) == "s"
    assert config.salt(make_call(tenant="a", extra={"cache_salt": 5})) == ""

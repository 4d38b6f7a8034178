"""The copy of a policy: nothing of it leads anywhere else, and no secret of it is real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.loading import read_policy
from gateway.selftest.subject import CannotTry, Subject, copy_of

ROUTE = {"name": "all", "match": {"models": ["*"]}, "backends": [{"ref": "cloud"}]}
POLICY: dict[str, Any] = {
    "version": 1,
    "backends": {
        "cloud": {"type": "openai", "base_url": "https://api.example/v1", "api_key": "env:CLOUD_KEY"},
        "claude": {"type": "anthropic", "api_key": "env:CLAUDE_KEY"},
    },
    "routes": [ROUTE],
}


def copied(folder: Path, **sections: Any) -> Subject:
    """The copy of a policy with these sections."""
    path = folder / "policy.yaml"
    path.write_text(json.dumps({**POLICY, **sections}), encoding="utf-8")
    return copy_of(read_policy(path, no_env=True), folder)


def test_copy_leads_nowhere_else(tmp_path: Path) -> None:
    """No address, no Redis and no folder of the original is left, and its upstreams are given their own."""
    stores = {"redis": {"url": "env:REDIS_URL"}, "batches": {"folder": "/srv/batches"}, "state": "/srv/state"}
    ledger = {"url": "env:LEDGER_URL", "journal": "/srv/journal"}

    made = copied(tmp_path, stores=stores, ledger=ledger).at(
        {"cloud": "http://127.0.0.1:5/v1", "claude": "http://127.0.0.1:6/v1"}
    )

    text = json.dumps(made)
    assert not [word for word in ("example", "env:", "/srv", "redis", "anthropic") if word in text]
    assert made["backends"]["cloud"]["base_url"] == "http://127.0.0.1:5/v1"


def test_copy_asks_and_refuses_nothing_of_its_own(tmp_path: Path) -> None:
    """What would keep calls from a lying upstream, or send it others, is left out, and the report says so."""
    several = {"type": "openai", "base_url": "https://a.example/v1", "quota": {"rpm": 5}}
    cloud = {**several, "api_keys": ["env:ONE", {"key": "env:TWO", "rpm": 3}]}
    price = {"input_per_1m": 1, "output_per_1m": 2}
    route = {
        **ROUTE,
        "backends": [{"ref": "cloud", "price": price}],
        "admission": {},
        "slo": {"ttft": "1s"},
        "mirror": {"to": "claude", "share": 0.5},
        "speculative": {"mode": "race", "draft": "claude"},
        "cache": {"semantic": {}},
    }
    key = {"name": "dev", "key": "env:DEV_KEY", "limit": {"rpm": 1}, "budget": {"usd": 1}}
    backends = {"cloud": cloud, "claude": POLICY["backends"]["claude"]}
    rules = {"limits": [{"name": "a", "per": "all", "rpm": 1}], "budgets": [{"name": "b", "per": "all", "usd": 1}]}

    subject = copied(tmp_path, backends=backends, keys=[key], routes=[route], ledger={"url": "env:LEDGER"}, **rules)

    text = json.dumps(subject.policy)
    left = ("limit", "budget", "quota", "rpm", "mirror", "speculative", "admission", "semantic")
    assert [word for word in left if f'"{word}' in text] == []
    assert len(subject.policy["backends"]["cloud"]["api_keys"]) == 1
    told = " ".join(subject.notes)
    assert [
        word for word in ("limits and budgets", "quotas", "mirrors", "semantic", "admission") if word not in told
    ] == []


def test_copy_has_canaries_for_secrets(tmp_path: Path) -> None:
    """Each secret of the original is another canary, in a file that only its owner reads."""
    subject = copied(tmp_path, keys=[{"name": "dev", "key": "env:DEV_KEY"}, {"name": "ops", "key": "env:OPS_KEY"}])

    assert len(set(subject.canaries)) == 4
    assert all("canary" in canary for canary in subject.canaries)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("secret-*")} == {0o600}
    assert [key.secret in subject.canaries for key in subject.keys] == [True, True]


def test_copy_finds_the_way_to_a_route(tmp_path: Path) -> None:
    """Model, headers and keys that a route asks for are those that checks send."""
    match = {"models": ["gpt-*"], "headers": {"x-team": "a*"}, "tenants": ["red"]}
    keys = [{"name": "blue", "key": "env:B", "tenant": "blue"}, {"name": "red", "key": "env:R", "tenant": "red"}]

    way = copied(tmp_path, routes=[{**ROUTE, "match": match}], keys=keys).way

    assert (way.model, way.headers) == ("gpt-selftest", (("x-team", "aselftest"),))
    assert [key.name for key in way.keys] == ["red"]


def test_copy_without_a_route_for_chats_cannot_be_tried(tmp_path: Path) -> None:
    """A policy that asks nobody is told so."""
    with pytest.raises(CannotTry, match="nothing to try"):
        copied(tmp_path, routes=[{**ROUTE, "match": {"paths": ["/v1/audio/*"]}}])


def test_copy_shortens_time_limits_and_keeps_shorter_ones(tmp_path: Path) -> None:
    """Minutes become seconds; what is shorter is left."""
    policy = copied(tmp_path, routes=[{**ROUTE, "timeouts": {"first_token": "5m", "total": "3s"}}]).policy

    assert policy["routes"][0]["timeouts"]["first_token"] == "10s"
    assert policy["routes"][0]["timeouts"]["total"] == "3s"

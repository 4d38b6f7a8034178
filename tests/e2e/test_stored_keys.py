"""Stored keys through `slipstream serve`, `slipstream keys` and /admin/keys: two gateways on one store."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.support.errors import openai_error
from tests.support.gateway import Gateway, running_gateway, start_gateway

POLICY = """
version: 1
backends:
  words: {{type: scripted}}
  slow: {{type: simulated, output_tokens: 80, base_us: 30000}}
stores: {{keys: {keys}}}
keys:
  - {{name: ops, key: "env:OPS_KEY", manages_keys: true}}
  - {{name: app, key: "env:APP_KEY", tenant: acme, admin: true}}
routes:
  - {{name: slow, match: {{models: [slow]}}, backends: [{{ref: slow}}]}}
  - {{name: chat, match: {{models: [plain, "gpt-*"], tenants: [default, acme]}}, backends: [{{ref: words}}]}}
"""
ENVIRON = {"OPS_KEY": "sk-ops-0123456789", "APP_KEY": "sk-app-0123456789"}
REVOKED_WITHIN_S = 5.0


def sqlite_policy(folder: Path) -> str:
    return POLICY.format(keys=f'{{url: "sqlite:///{folder / "keys.sqlite3"}"}}')


def command(gateway: Gateway, *words: str, code: int = 0, environ: Mapping[str, str] | None = None) -> str:
    """What `slipstream keys` prints; on standard error where it is to fail."""
    line = [str(Path(sys.executable).with_name("slipstream")), "keys", words[0], "--config", str(gateway.policy)]
    done = subprocess.run(
        [*line, *words[1:]], capture_output=True, text=True, env={**os.environ, **(environ or {})}, check=False
    )
    assert done.returncode == code, done.stderr
    return (done.stdout if code == 0 else done.stderr).strip()


async def ask(gateway: Gateway, key: str, model: str = "plain") -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        return await client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})


async def admin(
    gateway: Gateway, path: str = "", body: object = None, *, key: str = ENVIRON["OPS_KEY"], method: str = "POST"
) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
        headers = {"authorization": f"Bearer {key}"}
        return await client.request(method, f"/admin/keys{path}", json=body, headers=headers)


async def made(gateway: Gateway, **body: object) -> str:
    answer = await admin(gateway, body=body)
    assert answer.status_code == 200, answer.text
    key: str = answer.json()["key"]
    return key


async def seconds_until_refused(gateway: Gateway, key: str, limit_s: float = 15.0) -> float:
    began = time.monotonic()
    async with asyncio.timeout(limit_s):
        while (await ask(gateway, key)).status_code != 401:
            await asyncio.sleep(0.05)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway with an empty store."""
    with running_gateway(sqlite_policy(tmp_path_factory.mktemp("lone")), environ=ENVIRON) as gateway:
        yield gateway


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways, one SQLite file."""
    policy = sqlite_policy(tmp_path)
    async with start_gateway(policy, environ=ENVIRON) as left, start_gateway(policy, environ=ENVIRON) as right:
        yield left, right


@pytest.mark.timed
async def test_key_lives_and_dies_on_every_gateway(pair: tuple[Gateway, Gateway]) -> None:
    """Made by a command it is valid everywhere at once; revoked at one gateway it is refused at the other in time."""
    left, right = pair
    key = await asyncio.to_thread(
        command, left, "create", "--name", "alice", "--tenant", "acme", "--models", "gpt-*", "--expires", "90d"
    )

    at_once = [(await ask(gateway, key, "gpt-4o")).status_code for gateway in pair]
    other_model = openai_error(await ask(left, key), 404)
    shown = (await admin(right, "/alice", method="GET")).json()
    assert (await admin(left, "/alice/revoke")).json()["status"] == "revoked"
    at_left = (await ask(left, key, "gpt-4o")).status_code
    took_s = await seconds_until_refused(right, key)

    assert at_once == [200, 200]
    assert other_model["code"] == "model_not_found"
    assert (shown["tenant"], shown["models"], shown["status"]) == ("acme", ["gpt-*"], "active")
    assert at_left == 401
    assert took_s < REVOKED_WITHIN_S
    line = await left.wait_log(lambda line: line.get("key") == "alice")
    assert line["tenant"] == "acme"
    assert not any(key in gateway.stdout + gateway.stderr for gateway in pair)


@pytest.mark.timed
async def test_former_secret_goes_on_for_the_overlap_and_no_longer(pair: tuple[Gateway, Gateway]) -> None:
    """Both are the same caller meanwhile; without an overlap the former one ends."""
    left, right = pair
    first = await made(left, name="alice")

    second = (await admin(left, "/alice/rotate", {"overlap": "3s"})).json()["key"]
    began = time.monotonic()
    both = [(await ask(gateway, key)).status_code for gateway in pair for key in (first, second)]
    refused_s = [await seconds_until_refused(gateway, first) + time.monotonic() - began for gateway in pair]
    third = command(right, "rotate", "alice", "--overlap", "0s")
    took_s = max([await seconds_until_refused(gateway, second) for gateway in pair])
    left_over = [(await ask(gateway, third)).status_code for gateway in pair]

    assert both == [200] * 4
    assert min(refused_s) >= 2.5
    assert took_s < REVOKED_WITHIN_S
    assert left_over == [200, 200]
    assert not any(key in gateway.stdout + gateway.stderr for gateway in pair for key in (first, second, third))
    assert {line["key"] for line in left.log if line["status"] == 200 and line["route"] == "chat"} == {"alice"}


async def test_stored_key_has_a_limit_of_its_own(pair: tuple[Gateway, Gateway]) -> None:
    """Made by a command; shown, and held to, by a gateway that ran before."""
    left, right = pair
    key = command(left, "create", "--name", "a", "--rpm", "1")

    first, second = [await ask(right, key) for _ in range(2)]

    assert first.status_code == 200
    assert openai_error(second, 429)["message"].startswith("the limit of this key of 1 requests a minute is reached")
    assert (await admin(right, "/a", method="GET")).json()["limit"]["rpm"] == 1


async def test_open_stream_of_a_revoked_key_ends_normally(pair: tuple[Gateway, Gateway]) -> None:
    """What was begun with it is finished; what comes later is not begun."""
    left, _ = pair
    key = await made(left, name="alice")
    body = {"model": "slow", "messages": [{"role": "user", "content": "a b c d"}], "stream": True}
    async with (
        httpx.AsyncClient(base_url=left.url, verify=False, timeout=30) as client,
        client.stream("POST", "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}) as stream,
    ):
        lines = stream.aiter_lines()
        first = await anext(lines)
        await admin(left, "/alice/revoke")
        refused = (await ask(left, key)).status_code
        rest = [line async for line in lines]

    assert first.startswith("data:")
    assert refused == 401
    assert "data: [DONE]" in rest


async def test_only_keys_with_the_right_touch_keys(pair: tuple[Gateway, Gateway]) -> None:
    """A tenant's key cannot, nor an operator's of the cache; and no key that is made here ever can."""
    left, _ = pair
    alice = await made(left, name="alice", tenant="acme")
    before = (await admin(left, method="GET")).json()["data"]

    for key in (alice, ENVIRON["APP_KEY"]):
        for path, method in (("", "GET"), ("", "POST"), ("/alice", "GET"), ("/alice/rotate", "POST")):
            openai_error(await admin(left, path, {"name": "mallory"}, key=key, method=method), 403)
        openai_error(await admin(left, "/alice/revoke", key=key), 403)
        async with httpx.AsyncClient(
            verify=False, base_url=left.url, headers={"authorization": f"Bearer {key}"}
        ) as client:
            for path in ("/v1/admin/keys", "/admin", "//admin/keys", "/admin/keys/"):
                assert (await client.get(path)).status_code in (403, 404)
    openai_error(await admin(left, key="sk-nobody"), 401)
    for right in ("admin", "manages_keys"):
        assert right in openai_error(await admin(left, body={"name": "mallory", right: True}), 400)["message"]

    assert (await admin(left, method="GET")).json()["data"] == before


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("", {}, 400, "a key needs a name"),
        ("", {"name": "x y"}, 400, "a key needs a name"),
        ("", {"name": "ops"}, 400, 'the policy file has a key named "ops"'),
        ("", {"name": "x", "expires": "soon"}, 400, "expires: a moment is a date"),
        ("", {"name": "x", "expires": 7}, 400, "expires: a moment is a date"),
        ("", {"name": "x", "routes": ["chatt"]}, 400, 'Did you mean "chat"?'),
        ("", {"name": "x", "models": []}, 400, "models"),
        ("", {"name": "x", "priority": "highest"}, 400, "priority"),
        ("", {"name": "x", "tags": ["a b"]}, 400, "tags.0"),
        ("", {"name": "x", "limit": {"rpm": 0}}, 400, "limit.rpm"),
        ("", {"name": "x", "limit": {}}, 400, "a limit needs `rpm`, `tpm` or `concurrent`"),
        ("", {"name": "x", "limit": {"rmp": 5}}, 400, "limit.rmp: unknown; known are rpm, tpm, concurrent, burst"),
        ("", {"name": "x", "budget": {"usd": 1, "every": "year"}}, 400, "budget.every"),
        ("", {"name": "x", "budget": {"usd": 1, "time_zone": "Mars"}}, 400, "budget.time_zone"),
        ("", {"name": "x", "budget": {"usd": 1, "on_exceed": "fallback", "fallback": "chatt"}}, 400, '"chat"?'),
        ("", {"name": "x", "metadata": {"a": "b" * 513}}, 400, "metadata.a"),
        ("", {"name": "x", "metadata": {str(n): "" for n in range(17)}}, 400, "metadata"),
        ("", {"name": "x", "key": "sk-slip-mine"}, 400, "key: unknown"),
        ("", ["x"], 400, "not a JSON object"),
        ("/none/rotate", {}, 404, 'no key named "none"'),
        ("/none/revoke", {}, 404, 'no key named "none"'),
        ("/none/rotate", {"overlap": "91d"}, 400, "overlap: at most 90d"),
        ("/none/rotate", {"overlap": 3}, 400, "overlap: a duration needs"),
        ("/none/rotate", {"models": ["*"]}, 400, "models: unknown"),
        ("/none", {}, 405, "does not take POST"),
        ("/none/delete", {}, 405, "does not take POST"),
    ],
)
async def test_what_cannot_be_done_is_said(lone: Gateway, path: str, body: object, status: int, said: str) -> None:
    """In OpenAI's shape, and nothing is made."""
    error = openai_error(await admin(lone, path, body), status)

    assert said in error["message"]
    assert (await admin(lone, method="GET")).json()["data"] == []

"""Who may call, what for, and that keys stay where they belong."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import ENVIRON
from tests.support.errors import openai_error
from tests.support.gateway import Gateway, gateway_process, start_gateway
from tests.support.servers.openai_server import OpenAIServer

CHAT = {"model": "plain", "messages": [{"role": "user", "content": "hi"}]}
KEY = ENVIRON["DEV_KEY"]
OPEN_POLICY = """
version: 1
backends: {own: {type: scripted}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: own}]}]
"""


async def _ask(gateway: Gateway, headers: dict[str, str], body: object = CHAT) -> httpx.Response:
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, headers=headers) as client:
        return await client.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"authorization": f"BEARER   {KEY}"},
        {"authorization": KEY},
        {"x-api-key": KEY},
        {"api-key": KEY},
        {"x-api-key": "wrong", "authorization": f"Bearer {KEY}"},
    ],
)
async def test_key_is_taken_in_every_usual_place(
    gateway: Gateway, upstream: OpenAIServer, headers: dict[str, str]
) -> None:
    """OpenAI's, Anthropic's and Azure's headers, the scheme in any case."""
    assert (await _ask(gateway, headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": f"Bearer {ENVIRON['UPSTREAM_KEY']}"},
        {"x-api-key": "wrong"},
    ],
    ids=repr,
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files/f-1", "/v1/models"])
async def test_missing_or_wrong_key_is_401(
    gateway: Gateway, upstream: OpenAIServer, headers: dict[str, str], path: str
) -> None:
    """On every endpoint, with nothing sent upstream and the key not repeated."""
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, headers=headers) as client:
        answer = await (client.post(path, json=CHAT) if "chat" in path else client.get(path))

    error = openai_error(answer, 401)
    assert error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert KEY[:-1] not in error["message"]
    assert upstream.requests == []


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_pages_for_machines_need_no_key(gateway: Gateway, path: str) -> None:
    """Probes and scrapers have none."""
    answer = await gateway.raw(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())

    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_model_that_a_key_may_not_use_does_not_exist_for_it(gateway: Gateway, upstream: OpenAIServer) -> None:
    """404, the same words as for a model that nobody has; and it is not listed either."""
    narrow = {"authorization": f"Bearer {ENVIRON['NARROW_KEY']}"}

    allowed = await _ask(gateway, narrow)
    also = await _ask(gateway, narrow, {**CHAT, "model": "team/alias-2"})
    refused = await _ask(gateway, narrow, {**CHAT, "model": "scripted"})
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, headers=narrow) as client:
        listed = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]
        one = await client.get("/v1/models/scripted")

    assert (allowed.status_code, also.status_code) == (200, 200)
    error = openai_error(refused, 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert sorted(listed) == ["plain", "team/alias-2"]
    assert openai_error(one, 404)["code"] == "model_not_found"


async def test_narrow_key_cannot_reach_other_models_by_other_paths(gateway: Gateway, upstream: OpenAIServer) -> None:
    """A pass-through that names a model in its body is held to it too."""
    async with httpx.AsyncClient(
        base_url=gateway.url, verify=False, headers={"authorization": f"Bearer {ENVIRON['NARROW_KEY']}"}
    ) as client:
        for path in ("/v1/moderations", "/v1/rerank", "/v1/images/generations", "/v1/messages"):
            openai_error(await client.post(path, json={"model": "forbidden", "input": "x"}), 404)

        openai_error(await client.post("/v1/moderations", content=b'{"model":"x"}'), 404)
        openai_error(await client.post("/v1/audio/transcriptions", data={"model": "x"}, files={"file": b"x"}), 404)
        openai_error(await client.get("/v1/files"), 404)
        openai_error(await client.post("/v1/responses", json={"input": "x"}), 404)

    assert upstream.requests == []


@pytest.mark.parametrize("value", [b"Bearer ", b"Bearer \x00", b"Bearer \xff\xfe", b"\xc3\xbc"])
async def test_key_of_odd_bytes_is_refused(gateway: Gateway, value: bytes) -> None:
    """What no client library would send is refused like any wrong key, or not taken for HTTP at all."""
    answer = await gateway.raw(
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: %b\r\n\r\n" % value
    )

    assert answer.split(b" ")[1] == (b"400" if b"\x00" in value else b"401")


async def test_log_names_the_key_and_tenant_but_never_the_secret(gateway: Gateway, upstream: OpenAIServer) -> None:
    """The line says who called."""
    answer = await _ask(gateway, {"authorization": f"Bearer {ENVIRON['BLUE_KEY']}"})

    line = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
    assert (line["key"], line["tenant"]) == ("blue", "blue")
    assert ENVIRON["BLUE_KEY"] not in gateway.stdout


async def test_policy_without_keys_lets_this_machine_in_and_says_so(tmp_path: Path) -> None:
    """Loopback only, with a sentence about it; any key, and none, is fine."""
    async with start_gateway(OPEN_POLICY) as gateway:
        answers = [await _ask(gateway, headers) for headers in ({}, {"authorization": "Bearer anything"})]

        assert [answer.status_code for answer in answers] == [200, 200]
        assert "loopback only" in gateway.stderr
        assert not await gateway.reload("version: 1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_policy_without_keys_is_not_served_to_the_world(host: str) -> None:
    """An open door is refused before anything listens, with what to do about it."""
    with gateway_process(OPEN_POLICY, args=["--host", host]) as gateway:
        code = await gateway.wait_exit()

        assert code == 1
        assert "has no `keys`" in gateway.stderr
        assert "Add keys" in gateway.stderr
        assert "Traceback" not in gateway.stderr


async def test_missing_secret_stops_the_start_with_its_name() -> None:
    """The variable that is not set is named, with the place that wants it."""
    policy = OPEN_POLICY + 'keys: [{name: a, key: "env:NOT_THERE"}]\n'
    with gateway_process(policy) as gateway:
        code = await gateway.wait_exit()

        assert code == 1
        assert "NOT_THERE" in gateway.stderr
        assert "Traceback" not in gateway.stderr


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("authorization", "Bearer wrong"), ("authorization", f"Bearer {KEY}")], 401),
        ([("authorization", f"Bearer {KEY}"), ("authorization", "Bearer wrong")], 401),
        ([("x-api-key", KEY), ("api-key", "wrong")], 401),
        ([("x-api-key", "wrong"), ("x-api-key", KEY)], 401),
        ([("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")], 200),
        ([("authorization", f"Bearer {KEY}"), ("x-api-key", "wrong")], 200),
    ],
)
async def test_key_beside_another_one_is_refused(
    gateway: Gateway, upstream: OpenAIServer, headers: list[tuple[str, str]], status: int
) -> None:
    """Whoever reads the first of two and whoever reads the last must not take a call for two different callers'."""
    async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)

    assert answer.status_code == status
    assert len(upstream.requests) == (status == 200)


TERMS_POLICY = """
version: 1
backends: {{own: {{type: scripted}}}}
ledger: {{url: "sqlite:///{ledger}"}}
keys:
  - {{name: old, key: "env:OLD_KEY", expires: "2020-01-31"}}
  - {{name: core, key: "env:CORE_KEY", routes: [chat], team: core, tags: ["project:x", night], expires: 2999-01-31}}
  - {{name: any, key: "env:ANY_KEY"}}
routes:
  - {{name: other, match: {{models: [other]}}, backends: [{{ref: own}}]}}
  - {{name: chat, match: {{models: [plain, "p*"]}}, backends: [{{ref: own}}]}}
"""


async def test_key_is_held_to_its_time_and_routes_and_the_ledger_has_its_team_and_tags(tmp_path: Path) -> None:
    """An expired one is 401, a route of others does not exist, and rows say for whom and what for."""
    ledger = tmp_path / "ledger.sqlite3"
    environ = {"OLD_KEY": "sk-old-0123456789", "CORE_KEY": "sk-core-0123456789", "ANY_KEY": "sk-any-0123456789"}
    async with start_gateway(TERMS_POLICY.format(ledger=ledger), environ=environ) as gateway:

        async def ask(name: str, model: str) -> httpx.Response:
            headers = {"authorization": f"Bearer {environ[f'{name}_KEY']}"}
            return await _ask(gateway, headers, {**CHAT, "model": model})

        expired = openai_error(await ask("OLD", "plain"), 401)
        unknown = openai_error(await ask("CORE", "other"), 404)
        answers = [await ask("CORE", "plain"), await ask("ANY", "other")]
        async with httpx.AsyncClient(
            base_url=gateway.url, headers={"authorization": f"Bearer {environ['CORE_KEY']}"}
        ) as client:
            listed = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]
        await gateway.terminate()

    assert (expired["code"], unknown["code"]) == ("invalid_api_key", "model_not_found")
    assert [answer.status_code for answer in answers] == [200, 200]
    assert listed == ["plain"]
    with contextlib.closing(sqlite3.connect(ledger)) as connection:
        rows = connection.execute("SELECT key, team, tags FROM calls ORDER BY key").fetchall()
    assert rows == [("any", "", ""), ("core", "core", "project:x,night")]

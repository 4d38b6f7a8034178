"""Budgets are seen and raised while gateways run: at once here, soon elsewhere, for a while, and warned of again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.errors import openai_error
from tests.support.gateway import Gateway, running_gateway, start_gateway
from tests.support.servers.openai_server import OpenAIServer
from tests.support.servers.redis_server import RedisServer

POLICY = """
version: 1
backends:
  up: {{type: openai, base_url: "{url}"}}
stores:
  keys: {{url: "sqlite:///{folder}/keys.sqlite3"}}
  {redis}
{ledger}
keys:
  - {{name: ops, key: env:OPS, manages_keys: true}}
  - {{name: alice, key: env:ALICE, tenant: red, budget: {{usd: 1, every: total}}}}
budgets:
  - {{name: tenants, per: tenant, usd: 0.01, every: total, warn_at: 0.5}}
routes:
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: up, price: {{input_per_1m: 1, output_per_1m: 1000}}}}]}}
"""
KEYS = {"OPS": "sk-ops", "ALICE": "sk-alice"}
WITHIN_S = 5.0


@pytest.fixture
async def upstream() -> AsyncIterator[OpenAIServer]:
    """Each word of an answer costs a tenth of a cent."""
    async with OpenAIServer() as server:
        yield server


def policy_of(upstream: OpenAIServer, folder: Path, *, shares: bool = False) -> str:
    """The whole file; with a ledger and a Redis where it `shares`."""
    keeps = f'ledger: {{url: "sqlite:///{folder}/ledger.sqlite3"}}' if shares else ""
    store = 'redis: {url: "env:REDIS"}' if shares else ""
    return POLICY.format(url=upstream.base_url, folder=folder, redis=store, ledger=keeps)


async def send(gateway: Gateway, path: str, body: object = None, key: str = "sk-ops") -> httpx.Response:
    async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
        headers = {"authorization": f"Bearer {key}"}
        return await client.request("GET" if body is None else "POST", path, json=body, headers=headers)


async def ask(gateway: Gateway) -> httpx.Response:
    """Two words: about 0.002 USD."""
    body = {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "one two"}]}
    return await send(gateway, "/v1/chat/completions", body, "sk-alice")


async def spend_all(gateway: Gateway) -> httpx.Response:
    """The answer that is refused."""
    for _ in range(50):
        if (answer := await ask(gateway)).status_code != 200:
            return answer
    raise AssertionError("no budget ends it")


async def raise_by(gateway: Gateway, usd: object, until: str = "1h", **fields: Any) -> dict[str, Any]:
    whom = {} if "key" in fields else {"budget": "tenants", "who": "red"}
    answer = await send(
        gateway, "/admin/budgets/raises", {**whom, "usd": usd, "until": until, "why": "launch", **fields}
    )
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def seconds_until(gateway: Gateway, status: int) -> float:
    began = time.monotonic()
    async with asyncio.timeout(15):
        while (await ask(gateway)).status_code != status:
            await asyncio.sleep(0.1)
    return time.monotonic() - began


@pytest.mark.timed
async def test_spent_budget_is_raised_for_a_while_and_warned_of_again(upstream: OpenAIServer, tmp_path: Path) -> None:
    """Seen near its end, raised at once, used up again with one more warning, over by itself, and all in the trail."""
    with running_gateway(policy_of(upstream, tmp_path), environ=KEYS) as gateway:
        spent = openai_error(await spend_all(gateway), 429)
        before = (await send(gateway, "/admin/budgets")).json()
        first = await raise_by(gateway, "0.01", "1h")
        at_once = (await ask(gateway)).status_code
        raised = openai_error(await spend_all(gateway), 429)
        after = (await send(gateway, "/admin/budgets?limit=1")).json()
        await raise_by(gateway, "1", "2s")
        in_time = (await ask(gateway)).status_code
        over_s = await seconds_until(gateway, 429)
        trail = (await send(gateway, "/admin/budgets/raises")).json()["data"]
        warnings = gateway.stderr.count('% spent by "red"')
        own = await raise_by(gateway, 0.5, key="alice")

    assert spent["message"] == 'the budget "tenants" of 0.01 USD is spent'
    assert raised["message"] == 'the budget "tenants" of 0.01 USD, raised by 0.01, is spent'
    assert [(each["budget"], each["who"]) for each in before["data"]] == [("tenants", "red"), ("(key)", "red:alice")]
    assert before["data"][0]["share"] >= 1
    assert not before["is_whole"]
    assert first["status"] == "in_force"
    assert (at_once, in_time) == (200, 200)
    assert (after["total"], after["has_more"]) == (2, True)
    assert (after["data"][0]["usd"], after["data"][0]["raised_usd"]) == ("0.01", "0.01")
    assert over_s < 2 + WITHIN_S
    assert [(each["usd"], each["status"], each["by"], each["why"]) for each in trail] == [
        ("1", "over", "ops", "launch"),
        ("0.01", "replaced", "ops", "launch"),
    ]
    # At half of it, and at half of what it had then. At a dollar not half of it was spent.
    assert warnings == 2
    assert own["who"] == "red:alice"


@pytest.mark.timed
async def test_raise_reaches_the_other_gateway_over_redis_and_survives_a_restart(
    upstream: OpenAIServer, tmp_path: Path
) -> None:
    """Spent together; raised at one, it counts at the other within seconds, and at one that starts later."""
    async with RedisServer() as redis:
        policy = policy_of(upstream, tmp_path, shares=True)
        environ = {**KEYS, "REDIS": redis.url}
        async with start_gateway(policy, environ=environ) as left, start_gateway(policy, environ=environ) as right:
            await spend_all(left)
            refused = (await ask(right)).status_code
            await raise_by(left, 1)
            reached_s = await seconds_until(right, 200)
        async with start_gateway(policy, environ=environ) as later:
            restarted = (await ask(later)).status_code
            seen = (await send(later, "/admin/budgets?budget=tenants")).json()
            await raise_by(later, 0)
            taken_back = (await ask(later)).status_code

    assert refused == 429
    assert reached_s < WITHIN_S
    assert (restarted, taken_back) == (200, 429)
    assert seen["is_whole"]
    assert seen["data"][0]["raised_usd"] == "1"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"budget": "tenant"}, 'Did you mean "tenants"?'),
        ({"who": ""}, "needs by whom it counts"),
        ({"usd": "many"}, "usd: dollars on top"),
        ({"usd": "NaN"}, "usd: dollars on top"),
        ({"usd": -1}, "usd: dollars on top"),
        ({"usd": True}, "usd: dollars on top"),
        ({"usd": "0.1234567890123"}, "at most twelve decimals"),
        ({"until": "2020-01-01"}, "until: a moment to come"),
        ({"until": "3000d"}, "until: a moment to come"),
        ({"until": None}, "until: a moment is a date"),
        ({"why": " "}, "why: say it"),
        ({"key": "alice"}, "give `budget` and `who`, or `key`"),
        ({"budget": None, "who": None, "key": "ops"}, "has no budget of its own"),
        ({"amount": 1}, "amount: unknown"),
    ],
)
async def test_raise_that_cannot_be_is_said(lone: Gateway, fields: dict[str, Any], said: str) -> None:
    """And nothing is in the trail."""
    body = {"budget": "tenants", "who": "red", "usd": 1, "until": "1h", "why": "x", **fields}

    error = openai_error(await send(lone, "/admin/budgets/raises", body), 400)

    assert said in error["message"]
    assert (await send(lone, "/admin/budgets/raises")).json()["data"] == []


async def test_only_who_manages_keys_sees_and_raises(lone: Gateway) -> None:
    """Nobody raises the own budget."""
    body = {"key": "alice", "usd": 1, "until": "1h", "why": "x"}

    openai_error(await send(lone, "/admin/budgets", key="sk-alice"), 403)
    openai_error(await send(lone, "/admin/budgets/raises", body, key="sk-alice"), 403)
    openai_error(await send(lone, "/admin/budgets", body), 405)
    openai_error(await send(lone, "/admin/budgets/others"), 404)


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One that is asked nothing but what is its own."""
    folder = tmp_path_factory.mktemp("lone")
    text = POLICY.format(url="http://127.0.0.1:9/v1", folder=folder, redis="", ledger="")
    with running_gateway(text, environ=KEYS) as gateway:
        yield gateway

"""GET /v1/calls/REQUEST_ID: whoever made a call learns what became of it, and nobody else does."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx

from tests.support.errors import openai_error
from tests.support.gateway import Gateway, start_gateway

POLICY = """
version: 1
ledger: {{url: "sqlite:///{folder}/ledger.sqlite3"}}
backends:
  answers: {{type: scripted, price: {{input_per_1m: 2, output_per_1m: 8}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: answers}}], cache: {{exact: {{ttl: 60s}}}}}}]
keys:
  - {{name: alice, key: env:ALICE, tenant: acme}}
  - {{name: bob, key: env:BOB, tenant: acme}}
  - {{name: alice-too, key: env:OTHER, tenant: other}}
"""
ENVIRON = {name: f"sk-{name.lower()}-0123456789" for name in ("ALICE", "BOB", "OTHER")}
CHAT = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "Hello"}]}


def client_of(gateway: Gateway, name: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        verify=False, base_url=f"{gateway.url}/v1/", headers={"authorization": f"Bearer {ENVIRON[name]}"}
    )


async def told(client: httpx.AsyncClient, request_id: str) -> Any:
    """What the gateway says of a call, once it does."""
    async with asyncio.timeout(10):
        while (answer := await client.get(f"calls/{request_id}")).status_code != 200:
            assert openai_error(answer, 404)["code"] == "not_found"
            await asyncio.sleep(0.05)
    return answer.json()


async def test_call_is_told_to_who_made_it(tmp_path: Path) -> None:
    """Its cost is that of its tokens; from the cache it is 0, and saved is what it would have been."""
    async with (
        start_gateway(POLICY.format(folder=tmp_path), environ=ENVIRON) as gateway,
        client_of(gateway, "ALICE") as me,
    ):
        asked = [await me.post("chat/completions", json=CHAT) for _ in range(2)]
        paid, cached = [await told(me, answer.headers["x-request-id"]) for answer in asked]

    usage = asked[0].json()["usage"]
    cost = (Decimal(2) * usage["prompt_tokens"] + Decimal(8) * usage["completion_tokens"]) / 10**6
    assert Decimal(paid["cost_usd"]) == Decimal(paid["list_usd"]) == cost
    assert (paid["usage"]["input_tokens"], paid["usage"]["output_tokens"]) == tuple(usage.values())[:2]
    assert (paid["cache"], cached["cache"]) == ("miss", "hit")
    assert Decimal(cached["cost_usd"]) == 0
    assert {name: Decimal(amount) for name, amount in cached["saved_usd"].items()} == {"exact": cost}


async def test_call_of_another_key_is_not_told(tmp_path: Path) -> None:
    """Not even whether there is one; the newest is told where an id comes twice."""
    same = {"x-request-id": "mine/1:a"}
    async with start_gateway(POLICY.format(folder=tmp_path), environ=ENVIRON) as gateway:
        async with client_of(gateway, "ALICE") as me:
            for model in ("first", "second"):
                await me.post("chat/completions", json={**CHAT, "model": model}, headers=same)
            async with asyncio.timeout(10):
                while (await told(me, "mine/1:a"))["model"] != "second":
                    await asyncio.sleep(0.05)
        for name in ("BOB", "OTHER"):
            async with client_of(gateway, name) as stranger:
                for request_id in ("mine/1:a", "mine%2F1%3Aa", "' OR 1=1 --"):
                    assert openai_error(await stranger.get(f"calls/{request_id}"), 404)["code"] == "not_found"
        async with client_of(gateway, "ALICE") as me:
            for model in ("m", "n"):
                asked = await me.post("chat/completions", json={**CHAT, "model": model})
                waited = await me.get(f"calls/{asked.headers['x-request-id']}?wait=10")
                assert waited.json()["model"] == model
            for wrong in ("11", "-1", "1e1", "\u0663"):
                assert openai_error(await me.get("calls/x", params={"wait": wrong}), 400)["param"] == "wait"
        async with httpx.AsyncClient(verify=False, base_url=f"{gateway.url}/v1/") as nobody:
            openai_error(await nobody.get("calls/mine/1:a"), 401)
        async with client_of(gateway, "ALICE") as me:
            openai_error(await me.delete("calls/mine/1:a"), 405)
            openai_error(await me.get("calls"), 404)

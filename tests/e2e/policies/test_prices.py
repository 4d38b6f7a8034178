"""Prices from a provider's list: what a call costs, what is not known, and routes that want to know."""

from __future__ import annotations

import asyncio
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import Gateway, running_gateway
from tests.support.servers.openai_server import OpenAIServer

pytest.importorskip("genai_prices")

POLICY = """
version: 1
prices: {{}}
ledger: {{url: "sqlite:///{ledger}"}}
backends:
  up: {{type: openai, base_url: "{url}", priced_as: openai}}
  own: {{type: openai, base_url: "{url}"}}
routes:
  - {{name: strict, match: {{headers: {{x-strict: "1"}}}}, backends: [{{ref: up}}], require_price: true}}
  - {{name: own, match: {{models: ["mine"]}}, backends: [{{ref: own}}]}}
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}
"""


def slipstream(*args: str) -> list[str]:
    """A command."""
    return [str(Path(sys.executable).with_name("slipstream")), *args]


async def exported(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    """The ledger's lines once there are so many."""
    async with asyncio.timeout(20):
        while True:
            done = await asyncio.create_subprocess_exec(
                *slipstream("ledger", "export", "--config", str(gateway.policy)), stdout=asyncio.subprocess.PIPE
            )
            lines = [json.loads(line) for line in (await done.communicate())[0].splitlines()]
            if len(lines) >= count:
                return sorted(lines, key=lambda line: str(line["at"]))


async def test_prices_of_a_list_are_charged_and_what_is_not_on_it_is_unknown(tmp_path: Path) -> None:
    """Never 0: null in the ledger, counted, and refused by a route that asks for prices, before anything is sent."""
    async with OpenAIServer() as upstream:
        with running_gateway(POLICY.format(url=upstream.base_url, ledger=tmp_path / "l.sqlite3")) as gateway:
            async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:

                async def ask(model: str, tier: str = "auto", **headers: str) -> httpx.Response:
                    body = {"model": model, "messages": [{"role": "user", "content": "one two"}], "service_tier": tier}
                    return await client.post("/v1/chat/completions", json=body, headers=headers)

                statuses = [(await ask(model)).status_code for model in ("gpt-4o", "gpt-4o-2024-11-20", "nope", "mine")]
                strict = [await ask(model, **{"x-strict": "1"}) for model in ("gpt-4o", "nope")]
                hasty = await ask("gpt-4o", "ultrafast", **{"x-strict": "1"})
            lines = await exported(gateway, 7)
            metrics = await gateway.metrics()
            sent = len(upstream.requests)

    cost = Decimal(2) * Decimal("2.5") / 10**6 + Decimal(2) * 10 / 10**6
    assert statuses == [200] * 4
    assert [line["cost_usd"] and Decimal(line["cost_usd"]) for line in lines[:5]] == [cost, cost, None, None, cost]
    assert [line["price"].partition(":")[0] for line in lines] == ["list", "list", "", "", "list", "", ""]
    assert (strict[0].status_code, strict[1].status_code, sent) == (200, 403, 5)
    assert (hasty.status_code, "as ultrafast" in hasty.text) == (403, True)
    assert strict[1].json()["error"]["code"] == "cost_unknown"
    assert metrics.value("slipstream_upstream_unpriced_total", route="all", backend="up") == 1
    assert metrics.value("slipstream_prices_list_timestamp_seconds") > 1.7e9


async def test_prices_command_says_what_each_backend_takes_and_who_says_so(tmp_path: Path) -> None:
    """Of the models that are named, or that the routes name."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(url="http://127.0.0.1:9/v1", ledger=tmp_path / "l.sqlite3"))
    done = await asyncio.create_subprocess_exec(
        *slipstream("prices", "--config", str(policy), "--format", "json", "gpt-4o", "mine"),
        stdout=asyncio.subprocess.PIPE,
    )
    rows = json.loads((await done.communicate())[0])

    found = {(row["route"], row["backend"], row["model"]): row for row in rows}
    assert found["all", "up", "gpt-4o"]["standard"]["cached_input_per_1m"] == "1.25"
    assert found["all", "up", "gpt-4o"]["batch"]["output_per_1m"] == "5"
    assert found["all", "up", "gpt-4o"]["source"] == "list"
    assert (found["own", "own", "mine"]["source"], found["own", "own", "mine"]["price"]) == ("unknown", None)

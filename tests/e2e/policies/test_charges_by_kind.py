"""What a call costs is what its tokens cost by their kinds, whatever way it takes: the price table holds exactly."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import msgspec
from click.testing import CliRunner

from gateway.cli.main import cli
from tests.support.gateway import Gateway, running_gateway
from tests.support.servers.anthropic_server import AnthropicServer, make_message, text_block
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

POLICY = """
version: 1
ledger: {{url: "sqlite:///{ledger}"}}
backends:
  up: {{type: openai, base_url: "{url}", price: {price}}}
  claude: {{type: anthropic, base_url: "{anthropic}", api_key: "env:KEY", price: {price}}}
routes:
  - name: plain
    match: {{models: ["plain"]}}
    backends: [{{ref: up}}]
    retry: {{backoff: {{initial: 10ms}}}}
  - {{name: cached, match: {{models: ["cached"]}}, backends: [{{ref: up}}], cache: {{exact: {{}}}}}}
  - name: own
    match: {{models: ["own"]}}
    backends: [{{ref: up, price: {{input_per_1m: 1, output_per_1m: 0.000001}}}}]
  - {{name: claude, match: {{models: ["claude"]}}, backends: [{{ref: claude}}]}}
"""
RATES = {
    "input_per_1m": "2.500001",
    "cached_input_per_1m": "1.25",
    "cache_write_5m_per_1m": "3.125",
    "cache_write_1h_per_1m": "5",
    "audio_input_per_1m": "40",
    "output_per_1m": "10.000003",
    "reasoning_per_1m": "11",
    "audio_output_per_1m": "80",
}
FLEX = {"input_per_1m": "1.5", "output_per_1m": "5"}
_TIERS = ", ".join(f"{name}: {rate}" for name, rate in FLEX.items())
PRICE = (
    "{"
    + ", ".join(f"{name}: {rate}" for name, rate in RATES.items())
    + f", per_request: 0.000000000007, service_tiers: {{flex: {{{_TIERS}}}}}}}"
)
PATH = "/v1/chat/completions"

USAGE = {
    "prompt_tokens": 1009,
    "completion_tokens": 503,
    "total_tokens": 1512,
    "prompt_tokens_details": {"cached_tokens": 101, "cache_write_tokens": 53, "audio_tokens": 211},
    "completion_tokens_details": {"reasoning_tokens": 97, "audio_tokens": 31},
}
COST = (
    (1009 - 101 - 53 - 211) * Decimal(RATES["input_per_1m"])
    + 101 * Decimal(RATES["cached_input_per_1m"])
    + 53 * Decimal(RATES["cache_write_5m_per_1m"])
    + 211 * Decimal(RATES["audio_input_per_1m"])
    + (503 - 97 - 31) * Decimal(RATES["output_per_1m"])
    + 97 * Decimal(RATES["reasoning_per_1m"])
    + 31 * Decimal(RATES["audio_output_per_1m"])
) / 10**6 + Decimal("0.000000000007")
"""By hand, from the table."""


def whole(**fields: Any) -> Behaviour:
    """An answer that tells every kind of token."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}
    return Behaviour(body=msgspec.json.encode({**answer, **fields}))


def streamed(**fields: Any) -> Behaviour:
    """The same in events."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    said = {"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": None}
    events = [
        {**chunk, "choices": [said]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**chunk, "choices": [], "usage": USAGE, **fields},
    ]
    data = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
    return Behaviour(events=(*data, b"data: [DONE]\n\n"))


def chat(model: str, **fields: Any) -> dict[str, Any]:
    """A call."""
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}


async def exported(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    """The ledger's lines once there are so many, in the order of the calls."""
    command = ["ledger", "export", "--format", "jsonl", "--config", str(gateway.policy)]
    async with asyncio.timeout(20):
        while True:
            done = await asyncio.to_thread(CliRunner().invoke, cli, command)
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            if len(lines) >= count:
                return sorted(lines, key=lambda line: str(line["at"]))


async def test_charges_by_kind_are_those_of_the_price_table_whatever_way(tmp_path: Path) -> None:
    """Whole, streamed, asked again, given again in either form, of another tier, on a route with a price of its own."""
    async with OpenAIServer() as upstream:
        policy = POLICY.format(
            url=upstream.base_url, anthropic=upstream.base_url, ledger=tmp_path / "l.sqlite3", price=PRICE
        )
        with running_gateway(policy, environ={"KEY": "k"}) as gateway:
            async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
                upstream.next(whole(), streamed(), error(503), whole(), streamed(), whole(service_tier="flex"), whole())
                ways = [
                    chat("plain"),
                    chat("plain", stream=True),
                    chat("plain"),
                    chat("cached", stream=True),
                    chat("cached", stream=True),
                    chat("cached"),
                    chat("plain"),
                    chat("own"),
                ]
                for way in ways:
                    answer = await client.post(PATH, json=way)
                    assert answer.status_code == 200
            lines = await exported(gateway, len(ways))

    flex = (1009 * Decimal(FLEX["input_per_1m"]) + 503 * Decimal(FLEX["output_per_1m"])) / 10**6
    own = (1009 * Decimal(1) + 503 * Decimal("0.000001")) / 10**6
    assert [Decimal(line["cost_usd"]) for line in lines] == [COST, COST, COST, COST, 0, 0, flex, own]
    assert {line["reasoning_tokens"] for line in lines} == {97}
    assert {(line["written_5m_tokens"], line["audio_tokens"]) for line in lines} == {(53, 242)}
    # Nobody was paid for what the cache gave.
    names = [line["price"].partition(":")[0] for line in lines]
    assert names == ["backend", "backend", "backend", "backend", "", "", "backend", "route"]
    assert len({line["price"] for line in lines}) == 3


async def test_charges_by_kind_of_what_anthropic_was_paid_to_keep(tmp_path: Path) -> None:
    """Five minutes and an hour at their own prices, whole and streamed; the client sees the same usage as ever."""
    message = make_message(text_block("hi"), cache_read_input_tokens=70, cache_creation_input_tokens=30)
    message["usage"]["cache_creation"] = {"ephemeral_5m_input_tokens": 9, "ephemeral_1h_input_tokens": 21}
    async with AnthropicServer() as upstream:
        policy = POLICY.format(
            url=upstream.base_url, anthropic=upstream.base_url, ledger=tmp_path / "l.sqlite3", price=PRICE
        )
        with running_gateway(policy, environ={"KEY": "sk-ant-test"}) as gateway:
            async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
                upstream.message = message
                whole_answer = await client.post(PATH, json=chat("claude"))
                await client.post(PATH, json=chat("claude", stream=True))
            lines = await exported(gateway, 2)

    expected = (
        10 * Decimal(RATES["input_per_1m"])
        + 70 * Decimal(RATES["cached_input_per_1m"])
        + 9 * Decimal(RATES["cache_write_5m_per_1m"])
        + 21 * Decimal(RATES["cache_write_1h_per_1m"])
        + 5 * Decimal(RATES["output_per_1m"])
    ) / 10**6 + Decimal("0.000000000007")
    assert [Decimal(line["cost_usd"]) for line in lines] == [expected, expected]
    assert [(line["written_5m_tokens"], line["written_1h_tokens"]) for line in lines] == [(9, 21)] * 2
    assert whole_answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 70, "cache_write_tokens": 30}

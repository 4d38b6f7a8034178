"""What calls use that only pass through: read off their answers, into metrics and ledger, once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_ledger import wait_exported
from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}"}}}}
ledger: {{url: "sqlite:///{path}"}}
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{{ref: up, price: {{input_per_1m: 2, output_per_1m: 10, cached_input_per_1m: 0.5}}}}]
    passthrough: {{flat_usd: {{"POST /v1/audio/sp*": 0.015}}}}
"""
EVENTS = "text/event-stream"
MESSAGE = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":10,'
    b'"cache_read_input_tokens":90,"cache_creation_input_tokens":0,"output_tokens":1}}}\n\n',
    *[b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"hi"}}\n\n'] * 20,
    b'event: message_delta\ndata: {"type":"message_delta","delta":{},"usage":{"output_tokens":25}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)
ASK = {"model": "m", "input": "hi"}


@pytest.fixture
async def upstream() -> AsyncIterator[OpenAIServer]:
    """Answers as it is told."""
    async with OpenAIServer() as server:
        yield server


@pytest.fixture
async def gateway(upstream: OpenAIServer, tmp_path: Path) -> AsyncIterator[Gateway]:
    """With a ledger."""
    policy = POLICY.format(url=upstream.base_url, path=tmp_path / "ledger.sqlite3")
    async with start_gateway(policy) as running:
        yield running


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
        yield client


def told(**usage: Any) -> Behaviour:
    """An answer with that usage."""
    return Behaviour(body=json.dumps({"object": "x", "data": ["y" * 5000], "usage": usage}).encode())


async def test_what_passes_is_metered_as_its_answer_tells(
    gateway: Gateway, upstream: OpenAIServer, client: httpx.AsyncClient
) -> None:
    """Whole and streamed, in each API's words: tokens, and what the price makes of them."""
    upstream.next(
        told(input_tokens=10, cache_read_input_tokens=90, output_tokens=25),
        Behaviour(events=MESSAGE, content_type=EVENTS),
        told(total_tokens=300),
        told(input_tokens=20, output_tokens=4000),
        told(input_tokens=8, output_tokens=2, input_tokens_details={"cached_tokens": 4}),
    )
    for path in ("messages", "messages", "rerank", "images/generations", "responses/compact"):
        answer = await client.post(f"/v1/{path}", json=ASK, headers={"accept-encoding": "gzip", "range": "bytes=0-9"})
        assert answer.status_code == 200
    rows = await wait_exported(gateway, 5)
    metrics = await gateway.metrics()

    counts = [(row["input_tokens"], row["cached_tokens"], row["output_tokens"], row["estimated"]) for row in rows]
    assert counts == [
        (100, 90, 25, False),
        (100, 90, 25, False),
        (300, 0, 0, False),
        (20, 0, 4000, False),
        (8, 4, 2, False),
    ]
    assert [row["cost_usd"] for row in rows] == ["0.000315", "0.000315", "0.0006", "0.04004", "0.00003"]
    labels = {"route": "all", "backend": "up", "source": "upstream"}
    assert metrics.value("slipstream_upstream_tokens_total", kind="prompt", **labels) == 528
    assert metrics.value("slipstream_upstream_tokens_total", kind="completion", **labels) == 4052
    # Nobody can read an answer that is compressed, or a part of it.
    assert {received.header("accept-encoding") for received in upstream.requests} == {"identity"}
    assert {received.header("range") for received in upstream.requests} == {None}


async def test_what_is_read_again_costs_nothing_again(
    gateway: Gateway, upstream: OpenAIServer, client: httpx.AsyncClient
) -> None:
    """A stored response says what it used each time that it is fetched."""
    upstream.default = told(input_tokens=1000, output_tokens=1000)
    await client.post("/v1/responses", json=ASK)
    for _ in range(3):
        await client.get("/v1/responses/resp_1")
    rows = await wait_exported(gateway, 4)

    assert [(row["input_tokens"], row["cost_usd"]) for row in rows] == [(1000, "0.012"), *[(0, "0")] * 3]


async def test_flat_price_is_what_an_answer_costs(
    gateway: Gateway, upstream: OpenAIServer, client: httpx.AsyncClient
) -> None:
    """Whatever it used; an error costs nothing."""
    upstream.next(
        Behaviour(body=b"\x00\x01", content_type="audio/mpeg"),
        told(input_tokens=10**6),
        Behaviour(status=500, body=b"{}"),
    )
    for _ in range(3):
        await client.post("/audio/speech", json=ASK)
    rows = await wait_exported(gateway, 3)

    assert [row["cost_usd"] for row in rows] == ["0.015", "0.015", "0"]


async def test_leaving_early_is_no_way_to_have_an_answer_for_nothing(
    gateway: Gateway, upstream: OpenAIServer, client: httpx.AsyncClient
) -> None:
    """The beginning tells of the prompt; the pieces that came are counted."""
    upstream.next(Behaviour(events=MESSAGE, content_type=EVENTS, stall_after_events=16))
    async with client.stream("POST", "/v1/messages", json={**ASK, "stream": True}) as answer:
        got = b""
        async for piece in answer.aiter_raw():
            got += piece
            if got.count(b"content_block_delta") >= 30:
                break
    await upstream.wait_disconnected()
    (row,) = await wait_exported(gateway, 1)

    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"]) == (100, 90, 15)
    assert (row["estimated"], row["end"]) == (True, "client_gone")


async def test_what_no_answer_tells_is_counted_as_unmetered(
    gateway: Gateway, upstream: OpenAIServer, client: httpx.AsyncClient
) -> None:
    """What it costs is unknown, and not 0."""
    upstream.next(Behaviour(body=b"\x00\x01", content_type="audio/mpeg"), told(type="duration", seconds=9))
    for path in ("audio/translations", "audio/transcriptions"):
        await client.post(f"/v1/{path}", json=ASK)
    rows = await wait_exported(gateway, 2)
    async with asyncio.timeout(10):
        while (metrics := await gateway.metrics()).value(
            "slipstream_upstream_unmetered_total", route="all", backend="up"
        ) != 2:
            await asyncio.sleep(0.05)

    assert [row["cost_usd"] for row in rows] == [None, None]
    assert metrics is not None

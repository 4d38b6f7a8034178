"""The last bytes of an answer wait for its row in the ledger: nobody has what a killed worker would not tell of."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.test_ledger import CHAT, wait_exported
from tests.faults.test_workers import workers_of
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import HttpClient, chat_body, request_bytes

LONG = "word " * 40_000
POLICY = f"""
version: 1
backends:
  words: {{type: scripted}}
  long: {{type: scripted, script: [{{reply: "{LONG}"}}]}}
ledger: {{url: "sqlite:///PATH"}}
routes:
  - {{name: long, match: {{models: [long]}}, backends: [{{ref: long}}]}}
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: words}}]}}
"""
KILLS = 4


async def wait_answers(gateway: Gateway) -> None:
    """Until somebody answers at its port."""
    async with asyncio.timeout(30), httpx.AsyncClient(base_url=gateway.url) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                await client.get("/ready")
                return
            await asyncio.sleep(0.05)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """With a ledger."""
    async with start_gateway(POLICY.replace("PATH", str(tmp_path / "ledger.sqlite3"))) as running:
        yield running


async def test_no_answer_is_whole_before_its_row_is_safe(tmp_path: Path) -> None:
    """Workers are killed again and again while they answer many clients at once, whole and streamed: what a client has
    whole is in the ledger as it was.
    """
    answered: dict[str, int | None] = {}

    async def ask(gateway: Gateway, place: int) -> None:
        with contextlib.suppress(OSError, AssertionError):
            client = await HttpClient.open(gateway.port)
            for number in itertools.count():
                is_stream = number % 4 == 3
                answer = await client.post(CHAT, chat_body(f"{place} {number}", stream=is_stream))
                if not answer.is_whole:
                    break
                assert answer.status == 200
                tokens = None if is_stream else answer.json()["usage"]["completion_tokens"]
                answered[answer.header(b"x-request-id").decode()] = tokens
            client.close()

    policy = POLICY.replace("PATH", str(tmp_path / "ledger.sqlite3"))
    async with start_gateway(policy, args=("--workers", "2")) as gateway:
        for _ in range(KILLS):
            before = len(answered)
            clients = [asyncio.create_task(ask(gateway, place)) for place in range(32)]
            while len(answered) < before + 300:
                await asyncio.sleep(0.01)
            for victim in workers_of(gateway):
                os.kill(victim, signal.SIGKILL)
            await asyncio.gather(*clients)
            await wait_answers(gateway)
        async with asyncio.timeout(30):
            while (
                not answered.keys()
                <= (rows := {row["request_id"]: row for row in await wait_exported(gateway, 1)}).keys()
            ):
                await asyncio.sleep(0.2)

    told = {request_id: rows[request_id] for request_id in answered}
    assert [request_id for request_id, row in told.items() if row["end"] != "clean"] == []
    assert [
        request_id for request_id, tokens in answered.items() if tokens not in (None, told[request_id]["output_tokens"])
    ] == []


@pytest.mark.parametrize("model", ["m", "long"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_connection_that_ends_with_its_answer_ends_behind_it(
    gateway: Gateway, model: str, stream: bool, version: str
) -> None:
    """The close waits as the last bytes do, whoever asks for it."""
    request = request_bytes(CHAT, chat_body(model=model, stream=stream), [("connection", "close")])
    answer = await gateway.raw(request.replace(b"HTTP/1.1", b"HTTP/" + version.encode(), 1))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"content-length: %d" % len(body) in head or body.endswith(
        b"data: [DONE]\n\n" if version == "1.0" else b"0\r\n\r\n"
    )
    if model == "long" and not stream:
        assert len(body) > len(LONG)


async def test_requests_sent_ahead_are_answered_in_their_order(gateway: Gateway) -> None:
    """Refused ones among them, which have no row to wait for."""
    refused = request_bytes(CHAT, b"{}")
    asked = [
        request_bytes(CHAT, chat_body("a")),
        refused,
        request_bytes(CHAT, chat_body("b", model="long")),
        request_bytes("/health", b"", method="GET"),
        request_bytes(CHAT, chat_body("c", stream=True)),
        request_bytes(CHAT, chat_body("d"), [("connection", "close")]),
    ]
    answer = await gateway.raw(b"".join(asked))

    assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [200, 400, 200, 200, 200, 200]
    assert answer.count(b'"object":"chat.completion"') == 3


async def test_client_that_leaves_before_the_end_of_its_answer_harms_nobody(gateway: Gateway) -> None:
    """Many of them, at any moment of it."""
    request = request_bytes(CHAT, chat_body(model="long"))
    for pause_s in (0.0, 0.001, 0.003, 0.01) * 10:
        client = await HttpClient.open(gateway.port)
        client.send(request)
        await asyncio.sleep(pause_s)
        client.close()

    answer = await gateway.raw(request_bytes(CHAT, chat_body(), [("connection", "close")]))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert "Traceback" not in gateway.stderr

"""Large answers of many calls at once: their sum is bounded, and what is refused says when to come again."""

from __future__ import annotations

import asyncio
import json

import pytest

from backends.answer_budget import UNCOUNTED_BYTES, AnswerBudget, HeldAnswer
from backends.errors import TooManyAnswersHeld
from backends.protocol import Reply
from tests.support.clock import FakeClock
from tests.support.gateway import reserved_port, running_gateway
from tests.support.http_client import HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour, OpenAIServer

_MIB = 1024**2
CHAT = "/v1/chat/completions"
BOUNDS = {"SLIPSTREAM_MAX_ANSWERS": "30MiB"}
POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "http://127.0.0.1:{port}/v1"}}}}
defaults: {{retry: {{attempts: 0}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}]
"""


async def test_reader_waits_until_there_is_room_or_gives_up() -> None:
    """What is given back while it waits is its own."""
    clock = FakeClock()
    budget = AnswerBudget(_MIB, clock)
    first, second = HeldAnswer(budget), HeldAnswer(budget)
    await first.grow(_MIB - 1)
    waiting = asyncio.create_task(second.grow(2 * UNCOUNTED_BYTES))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    first.release()
    await waiting

    assert budget.num_bytes == 2 * UNCOUNTED_BYTES
    with pytest.raises(TooManyAnswersHeld):
        await HeldAnswer(budget).grow(2 * _MIB)


async def test_answer_counts_for_as_long_as_its_reply_lives() -> None:
    """Nobody who passes it on can forget it; small ones do not count."""
    budget = AnswerBudget(_MIB, FakeClock())
    held, small = HeldAnswer(budget), HeldAnswer(budget)
    await held.grow(500_000)
    await small.grow(UNCOUNTED_BYTES)
    reply = Reply(200, [], body=b"x")
    held.end_with(reply)
    assert budget.num_bytes == 500_000
    del reply

    assert budget.num_bytes == 0


async def test_sum_of_answers_is_bounded_over_all_calls() -> None:
    """Clients that do not read what they asked for hold it up to the bound; then 503, and all is well afterwards."""
    answer = json.dumps({"choices": [], "padding": "x" * (12 * _MIB)}).encode()
    with reserved_port() as port, running_gateway(POLICY.format(port=port), environ=BOUNDS) as gateway:
        upstream = OpenAIServer()
        upstream.port = port
        upstream.default = Behaviour(body=answer)

        async def wait_held(most: int, least: int) -> None:
            async with asyncio.timeout(10):
                while not least <= (await gateway.metrics()).value("slipstream_answer_bytes") <= most:
                    await asyncio.sleep(0.02)

        async with upstream:
            clients = [await HttpClient.open(gateway.port, receive_buffer=4096) for _ in range(2)]
            for client in clients:
                client.transport.pause_reading()
                client.send(request_bytes(CHAT, chat_body()))
            await wait_held(30 * _MIB, 24 * _MIB)
            late = await HttpClient.open(gateway.port)
            refused = await late.post(CHAT, chat_body())
            for client in clients:
                client.close()
            await wait_held(0, 0)
            after = await late.post(CHAT, chat_body())
            late.close()
            await wait_held(0, 0)

    assert (refused.status, (refused.error() or {})["code"]) == (503, "answer_bytes_exhausted")
    assert int(refused.header(b"retry-after")) >= 1
    assert after.status == 200

"""What upstreams worked on is counted whatever becomes of it: answered, shared, left, broken off, asked again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from gateway.cli.main import cli
from tests.support.gateway import Gateway, running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

POLICY = """
version: 1
ledger: {{url: "sqlite:///{ledger}"}}
backends:
  up: {{type: openai, base_url: "{url}"}}
  other: {{type: openai, base_url: "{url}"}}
routes:
  - name: plain
    match: {{models: ["plain"]}}
    backends: [{{ref: up, price: {price}}}]
    retry: {{backoff: {{initial: 10ms}}}}
  - {{name: cached, match: {{models: ["cached"]}}, backends: [{{ref: up, price: {price}}}], cache: {{exact: {{}}}}}}
  - name: two
    match: {{models: ["two"]}}
    backends: [{{ref: up, price: {price}}}, {{ref: other, priority: 1}}]
  - {{name: embed, match: {{models: ["embed"]}}, backends: [{{ref: up}}], batching: {{}}}}
"""
PRICE = "{input_per_1m: 0.15, output_per_1m: 0.000001}"
SAYS = "one two three four"
"""The upstream counts a word as a token, and repeats what it is told."""
PATH = "/v1/chat/completions"


class Counted:
    """A gateway in front of one upstream, and what it says that this worked on."""

    def __init__(self, gateway: Gateway, upstream: OpenAIServer, client: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self.client = client

    async def tokens(self, source: str = "upstream", **labels: str) -> tuple[float, float]:
        """Of prompts and of answers."""
        metrics = await self.gateway.metrics()
        prompt, completion = (
            metrics.value("slipstream_upstream_tokens_total", kind=kind, source=source, **labels)
            for kind in ("prompt", "completion")
        )
        return prompt, completion

    async def reported(self, *, when: tuple[int, int]) -> dict[str, dict[str, Any]]:
        """The ledger's sums by backend, once those of tokens, of prompts and answers, are more than these."""
        command = ["ledger", "report", "--format", "json", "--config", str(self.gateway.policy), "--by", "backend"]
        async with asyncio.timeout(20):
            while True:
                done = await asyncio.to_thread(CliRunner().invoke, cli, command)
                lines = {line["backend"]: line for line in json.loads(done.stdout)}
                sums = (sum(line[f"{kind}_tokens"] for line in lines.values()) for kind in ("input", "output"))
                if all(found >= wanted for found, wanted in zip(sums, when, strict=True)):
                    return lines

    async def wait_tokens(self, source: str, **labels: str) -> tuple[float, float]:
        """The same once there are any."""
        async with asyncio.timeout(10):
            while not (found := await self.tokens(source, **labels))[0]:
                await asyncio.sleep(0.02)
        return found


@pytest.fixture
async def counted(tmp_path: Path) -> Any:
    """One for each test: it counts from zero."""
    async with OpenAIServer() as upstream:
        with running_gateway(
            POLICY.format(url=upstream.base_url, ledger=tmp_path / "ledger.sqlite3", price=PRICE)
        ) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
                yield Counted(gateway, upstream, client)


def chat(model: str, **fields: Any) -> dict[str, Any]:
    """A call of four words."""
    return {"model": model, "messages": [{"role": "user", "content": SAYS}], **fields}


def events(num_words: int) -> Iterator[bytes]:
    """An answer's beginning, which tells no usage."""
    for word in ["", *(f"word{number} " for number in range(num_words))]:
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        delta = {"role": "assistant", "content": word}
        event = {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield b"data: " + msgspec.json.encode(event) + b"\n\n"


async def test_charges_are_what_the_upstream_told_whole_or_streamed(counted: Counted) -> None:
    """The same for both, once each; an answer out of the cache is none."""
    for fields in ({}, {"stream": True}):
        await counted.client.post(PATH, json=chat("plain", **fields))
        await counted.client.post(PATH, json=chat("cached", **fields))
    await counted.gateway.wait_log(count=4)
    ledger = await counted.reported(when=(16, 16))

    assert await counted.tokens(route="plain") == (8, 8)
    assert await counted.tokens(route="cached") == (4, 4)
    assert await counted.tokens("estimated") == (0, 0)
    # Twelve tokens each way, in pico-dollars; the second call of the cached route cost nothing.
    assert Decimal(ledger["up"]["cost_usd"]) == Decimal(12 * 150_000 + 12) / 10**12
    assert ledger[""]["cost_usd"] == "0"


async def test_charges_refused_attempts_are_free_and_what_comes_after_them_is_not(counted: Counted) -> None:
    """503 and 429 before an answer cost nothing."""
    counted.upstream.next(error(503), error(429))
    answer = await counted.client.post(PATH, json=chat("two"))
    await counted.gateway.wait_log()

    assert answer.status_code == 200
    assert len(counted.upstream.requests) == 3
    assert await counted.tokens() == (4, 4)
    assert await counted.tokens("estimated") == (0, 0)


async def test_charges_stream_that_a_client_leaves_is_estimated_by_what_came(counted: Counted) -> None:
    """Twelve words were written for it, which nobody is told to have cost anything."""
    counted.upstream.next(Behaviour(events=tuple(events(12)), stall_after_events=13))
    async with counted.client.stream("POST", PATH, json=chat("plain", stream=True)) as answer:
        seen = b""
        async for piece in answer.aiter_raw():
            seen += piece
            if b"word11" in seen:
                break
    prompt, completion = await counted.wait_tokens("estimated", backend="up")

    ledger = await counted.reported(when=(int(prompt), 12))

    assert completion == 12
    assert 4 <= prompt <= 40
    assert await counted.tokens() == (0, 0)
    assert (ledger["up"]["calls"], ledger["up"]["input_tokens"], ledger["up"]["output_tokens"]) == (1, prompt, 12)


async def test_charges_attempt_that_breaks_off_before_its_content_is_estimated_beside_the_one_that_answers(
    counted: Counted,
) -> None:
    """The first backend has read the prompt."""
    counted.upstream.next(Behaviour(events=tuple(events(0)), cut_after_events=1))
    answer = await counted.client.post(PATH, json=chat("two", stream=True))
    prompt, completion = await counted.wait_tokens("estimated", backend="up")

    ledger = await counted.reported(when=(int(prompt) + 4, 4))

    assert SAYS.split()[-1] in answer.text
    assert (4 <= prompt <= 40, completion) == (True, 0)
    assert await counted.tokens(backend="other") == (4, 4)
    assert {name: (line["calls"], line["input_tokens"]) for name, line in ledger.items()} == {
        "up": (0, prompt),
        "other": (1, 4),
    }
    assert Decimal(ledger["up"]["cost_usd"]) == Decimal(int(prompt) * 150_000) / 10**12
    assert ledger["other"]["cost_usd"] is None


async def test_charges_of_an_answer_whose_asker_left_are_counted_when_it_ends(counted: Counted) -> None:
    """Who joined it gets it whole; it is charged once, to the call that asked, which is over by then."""
    counted.upstream.next(Behaviour(event_delay_s=0.1))
    asked = chat("cached", stream=True)
    first = asyncio.create_task(counted.client.post(PATH, json=asked))
    await counted.upstream.wait_request(0)
    second = asyncio.create_task(counted.client.post(PATH, json=asked))
    async with asyncio.timeout(5):
        while (await counted.gateway.metrics()).value("slipstream_requests_in_flight") < 2:
            await asyncio.sleep(0.01)
    first.cancel()
    answer = await second
    found = await counted.wait_tokens("upstream")

    ledger = await counted.reported(when=(8, 8))

    assert answer.headers["x-cache"] == "joined"
    assert found == (4, 4)
    # The call that asked, whose row came before the answer's end; and the one that joined it, who was given as much.
    assert {name: (line["calls"], line["input_tokens"]) for name, line in ledger.items()} == {"up": (2, 8)}
    assert await counted.tokens("estimated") == (0, 0)


async def test_charges_of_callers_that_share_an_upstream_call_add_up(counted: Counted) -> None:
    """Nine tokens for both, by their texts, though one of them has left."""
    data = [{"object": "embedding", "index": at, "embedding": "AAAA"} for at in range(2)]
    body = {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 9, "total_tokens": 9}}
    counted.upstream.next(Behaviour(delay_s=0.3), Behaviour(delay_s=0.3, body=msgspec.json.encode(body)))

    def ask(text: str) -> asyncio.Task[httpx.Response]:
        sent = {"model": "embed", "input": text, "encoding_format": "base64"}
        return asyncio.create_task(counted.client.post("/v1/embeddings", json=sent))

    alone = ask("alone")
    await counted.upstream.wait_request(0)
    sharing = [ask("aaaa"), ask("bbbbb")]
    await alone
    before, _ = await counted.wait_tokens("upstream")
    await counted.upstream.wait_request(1)
    sharing[0].cancel()
    answer = await sharing[1]
    async with asyncio.timeout(5):
        while (await counted.tokens())[0] < before + 9:
            await asyncio.sleep(0.02)

    assert answer.json()["usage"]["prompt_tokens"] < 9
    assert await counted.tokens() == (before + 9, 0)


async def test_charges_of_what_passes_through_are_known_to_be_unknown(counted: Counted) -> None:
    """Counted apart, and not as nothing."""
    counted.upstream.next(Behaviour(body=b"sound"))
    answer = await counted.client.post("/v1/audio/speech", json={"model": "plain", "input": "hi", "voice": "v"})
    await counted.gateway.wait_log()
    metrics = await counted.gateway.metrics()

    assert answer.status_code == 200
    assert metrics.value("slipstream_upstream_unmetered_total", route="plain", backend="up") == 1
    assert await counted.tokens() == (0, 0)

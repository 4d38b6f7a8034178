"""Engines that tell what they hold, behind a whole gateway: calls go where their prompt lies, whoever sent it there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.engine.text.tokenizer import Tokenizer
from tests.support.engine import tiny_tokenizers
from tests.support.engine.kv_engine import PagedCache, Publisher
from tests.support.gateway import Gateway, gateway_process, start_gateway
from tests.support.servers.openai_server import OpenAIServer

PATH = "/v1/chat/completions"
POLICY = """
version: 1
backends:
{backends}
routes:
  - name: chat
    match: {{models: ["*"]}}
    backends: [{{ref: a}}, {{ref: b}}]
{more}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with its chat template."""
    return tiny_tokenizers.save(
        tiny_tokenizers.byte_level(),
        tmp_path_factory.mktemp("model"),
        tokenizer_config={"eos_token": tiny_tokenizers.END, "chat_template": tiny_tokenizers.CHATML},
    )


class Engine:
    """A server with its cache and its feed. What calls do to the cache is done when a test says so."""

    def __init__(self, name: str, server: OpenAIServer, publisher: Publisher, tokenizer: Tokenizer) -> None:
        self.name = name
        self.server = server
        self.publisher = publisher
        self.cache = PagedCache(400, page_size=16)
        self._tokenizer = tokenizer

    async def serve(self, *contents: str, salt: str = "") -> None:
        """Compute a chat, of this gateway or of another, and tell of it."""
        tokens = self._tokenizer.apply_chat_template([{"role": "user", "content": content} for content in contents])
        self.cache.serve(tokens, salt)
        await self.tell()

    async def tell(self) -> None:
        """Publish what has happened in the cache."""
        await self.publisher.publish(*self.cache.take_events())

    def settings(self, folder: Path, scope: str) -> str:
        """Its part of the policy file."""
        return (
            f'  {self.name}: {{type: openai, base_url: "{self.server.base_url}", kv_events: {{scope: {scope}, '
            f'endpoint: "{self.publisher.endpoint}", replay: "{self.publisher.replay}", tokenizer: "{folder}"}}}}\n'
        )


@asynccontextmanager
async def engines(folder: Path) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two of one model."""
    tokenizer = Tokenizer(folder)
    async with OpenAIServer() as one, OpenAIServer() as two, Publisher() as first, Publisher() as second:
        yield Engine("a", one, first, tokenizer), Engine("b", two, second, tokenizer)


@asynccontextmanager
async def gateway_of(pair: tuple[Engine, Engine], folder: Path, scope: str = "global") -> AsyncIterator[Gateway]:
    """A gateway that follows both."""
    async with start_gateway(policy(pair, folder, scope)) as gateway:
        for engine in pair:
            await metric_is(gateway, "slipstream_kv_live", 1, backend=engine.name)
        yield gateway


def policy(pair: tuple[Engine, Engine], folder: Path, scope: str = "global", more: str = "") -> str:
    """One route over both."""
    return POLICY.format(backends="".join(engine.settings(folder, scope) for engine in pair), more=more)


async def ask(gateway: Gateway, pair: tuple[Engine, Engine], *contents: str, times: int = 6) -> set[str]:
    """Who answers a chat, asked so often; chance alone would not always choose the same."""
    before = [len(engine.server.requests) for engine in pair]
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": text} for text in contents]}
    async with httpx.AsyncClient(verify=False, base_url=gateway.url) as client:
        for _ in range(times):
            assert (await client.post(PATH, json=body)).status_code == 200
    return {engine.name for engine, count in zip(pair, before, strict=True) if len(engine.server.requests) > count}


async def metric_is(gateway: Gateway, name: str, value: float, **labels: str) -> None:
    """Wait until a metric has that value."""
    async with asyncio.timeout(30):
        while (await gateway.metrics()).value(name, **labels) != value:
            await asyncio.sleep(0.02)


PROMPT = "The quick brown fox jumps over the lazy dog. Grüße. " * 60


async def test_kv_events_lead_calls_to_whoever_holds_their_prompt(folder: Path) -> None:
    """At first the engine that another gateway has used, and once that has evicted it the one that has it now."""
    async with engines(folder) as pair, gateway_of(pair, folder) as gateway:
        a, b = pair
        await b.serve(PROMPT)
        await metric_is(gateway, "slipstream_kv_blocks", b.cache.num_pages, backend="b")
        at_first = await ask(gateway, pair, PROMPT + "And then?")
        await a.serve(PROMPT)
        b.cache.resize(1)
        await b.tell()
        await metric_is(gateway, "slipstream_kv_blocks", 1, backend="b")
        after_eviction = await ask(gateway, pair, PROMPT + "And then?")
        a.cache.clear()
        await a.tell()
        await b.serve(PROMPT, "And?")
        await metric_is(gateway, "slipstream_kv_blocks", b.cache.num_pages, backend="b")
        after_reset = await ask(gateway, pair, PROMPT, "And?", "No.")
        metrics = await gateway.metrics()

    assert (at_first, after_eviction, after_reset) == ({"b"}, {"a"}, {"b"})
    assert metrics.value("slipstream_kv_events_total", backend="b", kind="removed") > 0
    assert metrics.value("slipstream_kv_events_total", backend="a", kind="cleared") == 1
    assert metrics.value("slipstream_routing_prompt_tokens_total", replica="b", kind="matched") > 0


async def test_kv_events_are_asked_for_at_the_start_and_kept_over_a_reload(folder: Path) -> None:
    """A gateway that starts late knows what was stored before; a changed policy does not make it ask again, and it ends
    as one without feeds does."""
    async with engines(folder) as pair:
        a, b = pair
        await b.serve(PROMPT)
        async with gateway_of(pair, folder) as gateway:
            await metric_is(gateway, "slipstream_kv_blocks", b.cache.num_pages, backend="b")
            assert await gateway.reload(policy(pair, folder, more="    retry: {attempts: 1}"))
            chosen = await ask(gateway, pair, PROMPT + "And then?")
            metrics = await gateway.metrics()
            code = await gateway.terminate()

    assert (chosen, code) == ({"b"}, 0)
    assert b.publisher.asked == a.publisher.asked == [0]
    assert metrics.value("slipstream_kv_blocks", backend="b") == b.cache.num_pages


async def test_kv_events_that_break_off_cost_no_call(folder: Path) -> None:
    """Without the feed a prompt still goes to where it was sent last, and the feed comes back by itself."""
    async with engines(folder) as pair, gateway_of(pair, folder) as gateway:
        b = pair[1]
        await b.serve(PROMPT)
        await metric_is(gateway, "slipstream_kv_blocks", b.cache.num_pages, backend="b")
        await b.publisher.stop()
        await metric_is(gateway, "slipstream_kv_live", 0, backend="b")
        while_down = await ask(gateway, pair, PROMPT + "And then?")
        await b.publisher.start()
        await metric_is(gateway, "slipstream_kv_live", 1, backend="b")
        await metric_is(gateway, "slipstream_kv_blocks", b.cache.num_pages, backend="b")

    assert while_down == {"b"}


async def test_kv_events_keep_tenants_apart(folder: Path) -> None:
    """Each call carries its tenant's salt; what lies there under another one attracts nobody."""
    async with engines(folder) as pair, gateway_of(pair, folder, "tenant") as gateway:
        a, b = pair
        await ask(gateway, pair, "Hello", times=1)
        salts = [request.json()["cache_salt"] for engine in pair for request in engine.server.requests]
        await a.serve(PROMPT, salt="another")
        await b.serve(PROMPT, salt=salts[0])
        await metric_is(gateway, "slipstream_kv_blocks", a.cache.num_pages, backend="a")
        await metric_is(gateway, "slipstream_kv_blocks", b.cache.num_pages, backend="b")
        chosen = await ask(gateway, pair, PROMPT + "And then?")

    assert [len(salt) for salt in salts] == [32]
    assert chosen == {"b"}


async def test_kv_events_without_their_tokenizer_are_refused_at_the_start(folder: Path, tmp_path: Path) -> None:
    """With what is missing, and which setting says so."""
    async with engines(folder) as pair:
        with gateway_process(policy(pair, tmp_path)) as gateway:
            code = await gateway.wait_exit()
            said = gateway.stderr

    assert code != 0
    assert f"kv_events.tokenizer: {tmp_path}/tokenizer.json does not exist" in said

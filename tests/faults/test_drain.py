"""SIGTERM while streams run: readiness goes first, every stream is finished, then the process ends."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from tests.support.faults import CHAT, CaseServer, policy
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour

_STREAMS = 30
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
_END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
_EVENTS = (*(_EVENT,) * 20, _END)


async def _start_streams(gateway: Gateway) -> list[HttpClient]:
    clients = [await HttpClient.open(gateway.port) for _ in range(_STREAMS)]
    for client in clients:
        client.send(request_bytes(CHAT, chat_body(stream=True)))
    for client in clients:
        await client.wait_body()
    return clients


async def test_sigterm_cuts_no_stream_that_ends_within_the_limit() -> None:
    """Readiness says no at once, while the port still answers; then all streams end as they would have."""
    async with CaseServer() as server:
        server.default = Behaviour(events=_EVENTS, event_delay_s=0.05)
        environ = {"SLIPSTREAM_DRAIN_DELAY": "300ms", "SLIPSTREAM_DRAIN_LIMIT": "10s"}
        async with start_gateway(policy(server.base_url), environ=environ) as gateway:
            clients = await _start_streams(gateway)
            gateway.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.05)
            ready = await gateway.raw(b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            answers = [await client.answer() for client in clients]
            code = await gateway.wait_exit()

    assert ready.startswith(b"HTTP/1.1 503")
    assert {(answer.is_whole, bytes(answer.body)) for answer in answers} == {(True, b"".join(_EVENTS))}
    assert code == 0


@pytest.mark.timed
async def test_sigterm_ends_streams_beyond_the_limit_as_broken() -> None:
    """A stream that never ends does not keep the process; its client can tell that it was cut."""
    async with CaseServer() as server:
        server.default = Behaviour(events=_EVENTS, stall_after_events=3)
        async with start_gateway(policy(server.base_url), environ={"SLIPSTREAM_DRAIN_LIMIT": "1s"}) as gateway:
            clients = await _start_streams(gateway)
            started_at = time.monotonic()
            gateway.process.send_signal(signal.SIGTERM)
            answers = [await client.answer() for client in clients]
            code = await gateway.wait_exit()
            took_s = time.monotonic() - started_at
            said = gateway.stderr

    assert {answer.is_whole for answer in answers} == {False}
    assert not any(b"[DONE]" in answer.body for answer in answers)
    assert took_s <= 3
    assert code == 0
    assert "Traceback" not in said

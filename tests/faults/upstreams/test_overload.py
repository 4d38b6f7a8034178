"""More calls at once than can be answered in time: all are answered, and afterwards everything is as before."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.faults import CHAT, CaseServer, percentile, policy
from tests.support.gateway import start_gateway
from tests.support.http_client import Connections, chat_body
from tests.support.servers.openai_server import Behaviour

_BURST = 400
_ROUNDS = 3


async def _timed_ms(connections: Connections, body: bytes) -> float:
    started_at = time.monotonic()
    answer = await connections.post(CHAT, body, timeout_s=20)
    assert answer.status == 200
    assert answer.is_whole
    return (time.monotonic() - started_at) * 1e3


@pytest.mark.alone
async def test_overload_is_survived_and_leaves_no_backlog() -> None:
    """Bursts of four hundred calls, plain and streamed, at once; the next calls are as fast as the first."""
    async with CaseServer() as server:
        async with start_gateway(policy(server.base_url)) as gateway:
            connections = Connections(gateway.port)
            server.default = Behaviour(delay_s=0.01)
            before_ms = [await _timed_ms(connections, chat_body()) for _ in range(50)]
            for _ in range(_ROUNDS):
                bodies = [chat_body(stream=number % 2 == 0) for number in range(_BURST)]
                await asyncio.gather(*(_timed_ms(connections, body) for body in bodies))
            after_ms = [await _timed_ms(connections, chat_body()) for _ in range(50)]
            in_flight = (await gateway.metrics()).value("slipstream_requests_in_flight")
            held_mib = gateway.rss_mib()
            await connections.aclose()

    assert percentile(after_ms, 0.5) <= 2 * percentile(before_ms, 0.5) + 5
    assert in_flight == 0
    assert held_mib <= 120

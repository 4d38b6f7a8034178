"""Many connections at once: how many there may be, and how many requests may wait on them all."""

from __future__ import annotations

import asyncio

from gateway.http.connection_count import ConnectionCount
from tests.support.gateway import running_gateway
from tests.support.http_client import HttpClient, chat_body, request_bytes

CHAT = "/v1/chat/completions"
POLICY = """
version: 1
backends: {b: {type: scripted, script: [{delay: 10s}]}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: b}]}]
"""


async def test_connection_over_the_bound_is_told_and_closed() -> None:
    """Those that are open go on; there is room again when one has gone."""
    with running_gateway(POLICY, environ={"SLIPSTREAM_MAX_CONNECTIONS": "3"}) as gateway:
        clients = [await HttpClient.open(gateway.port) for _ in range(3)]
        assert (await clients[0].post("/v1/unknown", b"")).status == 404
        late = await HttpClient.open(gateway.port)
        refused = await late.answer()
        clients[0].close()
        async with asyncio.timeout(5):
            while True:
                late = await HttpClient.open(gateway.port)
                after = await late.post("/v1/unknown", b"")
                if after.status != 503:
                    break
        for client in (late, *clients[1:]):
            client.close()

    assert (refused.status, (refused.error() or {})["code"]) == (503, "too_many_connections")
    assert refused.is_whole
    assert after.status == 404


async def test_flood_on_many_connections_is_kept_short() -> None:
    """Each may send two hundred ahead, but not when twenty do; whoever does not flood is answered meanwhile."""
    flood = request_bytes(CHAT, chat_body()) + request_bytes("/health", b"") * 200
    with running_gateway(POLICY) as gateway:
        clients = [await HttpClient.open(gateway.port) for _ in range(40)]
        for client in clients:
            client.send(flood)
        async with asyncio.timeout(10):
            while not any(client.is_closed for client in clients):
                await asyncio.sleep(0.02)
        honest = await HttpClient.open(gateway.port)
        answer = await honest.post("/v1/unknown", b"")
        num_closed = sum(client.is_closed for client in clients)
        for client in (honest, *clients):
            client.close()

    assert answer.status == 404
    assert num_closed >= 10


def test_crowd_lets_each_keep_less_when_many_wait() -> None:
    """And all of it again afterwards."""
    crowd = ConnectionCount(10)
    alone = crowd.max_kept_ahead
    crowd.num_ahead += 5000
    crowded = crowd.max_kept_ahead
    crowd.num_ahead -= 5000

    assert crowded < alone == crowd.max_kept_ahead

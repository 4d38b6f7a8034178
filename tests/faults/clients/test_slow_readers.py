"""Clients that read more slowly than answers come: what they have not read stays upstream."""

from __future__ import annotations

import asyncio

from tests.support.faults import CHAT, CaseServer, policy
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import Connections, HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour

_READERS = 50
_MAX_KIB_PER_STREAM = 256
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % (b"x" * 8000)
_END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
_EVENTS = (*(_EVENT,) * 700, _END)


async def test_slow_readers_cost_a_bounded_amount_of_memory_and_lose_nothing() -> None:
    """Fifty streams of 5.6 MB that nobody reads take 256 KiB each at most; read on, they are whole."""
    async with CaseServer() as server:
        server.default = Behaviour(events=_EVENTS)
        async with start_gateway(policy(server.base_url)) as gateway:
            connections = Connections(gateway.port)
            await asyncio.gather(*(connections.post(CHAT, chat_body(stream=True)) for _ in range(2)))
            before_mib = gateway.rss_mib()
            clients = [await HttpClient.open(gateway.port, receive_buffer=16_384) for _ in range(_READERS)]
            for client in clients:
                client.send(request_bytes(CHAT, chat_body(stream=True)))
                client.on_bytes = lambda data, client=client: client.transport.pause_reading()
            held_mib = await _settled_rss_mib(gateway)
            for client in clients:
                client.on_bytes = None
                client.transport.resume_reading()
            answers = [await client.answer(timeout_s=20) for client in clients[:5]]
            for client in clients:
                client.close()
            await connections.aclose()

    assert (held_mib - before_mib) * 1024 / _READERS <= _MAX_KIB_PER_STREAM
    assert [answer.is_whole and bytes(answer.body) == b"".join(_EVENTS) for answer in answers] == [True] * 5


async def _settled_rss_mib(gateway: Gateway) -> float:
    """The resident memory once it does not grow any more: every buffer on the way is full."""
    sizes = [gateway.rss_mib()]
    while len(sizes) < 10 or sizes[-1] > sizes[-10] + 0.2:
        # Time is the subject: buffers fill as fast as the machine can.
        await asyncio.sleep(0.05)
        sizes.append(gateway.rss_mib())
    return sizes[-1]

"""A thousand clients ask the same at once: one upstream call answers them all, or a second where the first one dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.faults import CACHE, CHAT, Setting, setting
from tests.support.http_client import Answer, HttpClient, chat_body
from tests.support.servers.openai_server import Behaviour, OpenAIServer

_CLIENTS = 1000
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word %d"},"finish_reason":null}]}\n\n'
_END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
_EVENTS = (*(_EVENT % number for number in range(10)), _END)


@pytest.fixture(scope="module")
def caching() -> Iterator[Setting]:
    """A gateway with a cache."""
    with setting(routes={"*": {"cache": CACHE}}) as made:
        yield made


@pytest.fixture
async def upstream(caching: Setting) -> AsyncIterator[OpenAIServer]:
    """The upstream of that gateway; slow enough for all clients to come."""
    server = OpenAIServer(Behaviour(events=_EVENTS, delay_s=0.5, event_delay_s=0.02))
    server.port = caching.ports[0]
    async with server:
        yield server


async def _ask_all(setting: Setting, body: bytes) -> list[Answer]:
    clients = [await HttpClient.open(setting.gateway.port) for _ in range(_CLIENTS)]
    try:
        return await asyncio.gather(*(client.post(CHAT, body, timeout_s=20) for client in clients))
    finally:
        for client in clients:
            client.close()


async def test_thousand_identical_streams_are_one_upstream_call(caching: Setting, upstream: OpenAIServer) -> None:
    """Every client gets the whole stream."""
    answers = await _ask_all(caching, chat_body("one", stream=True))

    assert {(answer.status, answer.is_whole, bytes(answer.body)) for answer in answers} == {
        (200, True, b"".join(_EVENTS))
    }
    assert len(upstream.requests) == 1


async def test_thousand_identical_streams_are_two_upstream_calls_where_the_first_dies(
    caching: Setting, upstream: OpenAIServer
) -> None:
    """The leader gets the error that it met; a follower takes over, and the others follow that one."""
    upstream.next(Behaviour(raw=b"", delay_s=0.5))
    answers = await _ask_all(caching, chat_body("two", stream=True))

    good = [answer for answer in answers if answer.status == 200]
    assert {(answer.is_whole, bytes(answer.body)) for answer in good} == {(True, b"".join(_EVENTS))}
    assert len(good) >= _CLIENTS - 1
    assert len(upstream.requests) == 2


async def test_thousand_identical_plain_calls_are_one_upstream_call(caching: Setting, upstream: OpenAIServer) -> None:
    """The same where clients wait for the whole answer."""
    upstream.default = Behaviour(delay_s=0.5)
    answers = await _ask_all(caching, chat_body("three"))

    assert {answer.status for answer in answers} == {200}
    assert len({bytes(answer.body) for answer in answers}) == 1
    assert len(upstream.requests) == 1

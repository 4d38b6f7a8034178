"""What no cache may keep: asked again, the upstream is asked again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from tests.support.faults import CACHE, CHAT, CaseServer, Setting, setting
from tests.support.http_client import Connections, chat_body
from tests.support.servers.openai_server import Behaviour, error, html_error

_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":%b}]}\n\n'
_DONE = b"data: [DONE]\n\n"


def _whole(finish_reason: str | None, **more: object) -> Behaviour:
    choice = {"index": 0, "message": {"role": "assistant", "content": "word"}, "finish_reason": finish_reason}
    return Behaviour(body=msgspec.json.encode({"id": "c", "choices": [choice], **more}))


_PLAIN = {
    "bad request": error(400),
    "rate limit": error(429),
    "server error": error(500),
    "proxy's page": html_error(),
    "answer without an end": _whole(None),
    "filtered answer": _whole("content_filter"),
    "answer that the server broke off": _whole("insufficient_system_resource"),
    "answer that was filtered in other words": _whole("content_filter: PROHIBITED_CONTENT"),
    "answer without choices": Behaviour(body=b'{"id":"c","choices":[]}'),
    "answer with an error": Behaviour(body=b'{"error":{"message":"no","type":"t","param":null,"code":null}}'),
    "forbidden by the upstream": Behaviour(body=_whole("stop").body, headers=(("cache-control", "no-store"),)),
    "too large": Behaviour(body=_whole("stop", padding="x" * 1_100_000).body),
    "cut": Behaviour(body=_whole("stop").body, cut_after_bytes=40),
    "no content": Behaviour(status=204, body=b""),
}
_STREAMS = {
    "error at once": Behaviour(events=(b'data: {"error":{"message":"no","code":500}}\n\n', _DONE)),
    "error later": Behaviour(events=(_EVENT % b"null", b'data: {"error":{"message":"no"}}\n\n', _DONE)),
    "cut": Behaviour(events=(_EVENT % b"null", _EVENT % b'"stop"', _DONE), cut_after_events=1),
    "without an end": Behaviour(events=(_EVENT % b"null",)),
    "DONE without finish_reason": Behaviour(events=(_EVENT % b"null", _DONE)),
    "filtered": Behaviour(events=(_EVENT % b'"content_filter"', _DONE)),
    "broken off by the server": Behaviour(events=(_EVENT % b'"abort"', _DONE)),
    "too large": Behaviour(
        events=(*(_EVENT.replace(b"word", b"x" * 9000) % b"null",) * 130, _EVENT % b'"stop"', _DONE)
    ),
}


@pytest.fixture(scope="module")
def caching() -> Iterator[Setting]:
    """A gateway with a cache and no retries."""
    with setting(routes={"*": {"cache": CACHE, "retry": {"attempts": 0}}}) as made:
        yield made


@pytest.fixture
async def upstream(caching: Setting) -> AsyncIterator[CaseServer]:
    """The upstream of that gateway."""
    async with CaseServer(caching.ports[0]) as server:
        yield server


async def _is_cached(setting: Setting, upstream: CaseServer, behaviour: Behaviour, case: str, *, stream: bool) -> bool:
    upstream.cases[case] = behaviour
    connections = Connections(setting.gateway.port)
    outcomes = [
        (await connections.post(CHAT, chat_body(model=f"m/{case}", stream=stream))).header(b"x-cache") for _ in range(2)
    ]
    await connections.aclose()
    return b"hit" in outcomes or upstream.num_asked[case] != 2


@pytest.mark.parametrize("case", _PLAIN)
async def test_plain_answer_that_is_no_answer_is_not_cached(caching: Setting, upstream: CaseServer, case: str) -> None:
    """Errors, cut, filtered, forbidden and oversize answers are asked for again."""
    assert not await _is_cached(caching, upstream, _PLAIN[case], f"plain {case}", stream=False)


@pytest.mark.parametrize("case", _STREAMS)
async def test_stream_that_is_no_whole_answer_is_not_cached(caching: Setting, upstream: CaseServer, case: str) -> None:
    """The same of streams."""
    assert not await _is_cached(caching, upstream, _STREAMS[case], f"stream {case}", stream=True)


async def test_good_answers_are_cached(caching: Setting, upstream: CaseServer) -> None:
    """So that the tests above mean something."""
    good = Behaviour(events=(_EVENT % b"null", _EVENT % b'"stop"', _DONE))

    assert await _is_cached(caching, upstream, _whole("stop"), "good plain", stream=False)
    assert await _is_cached(caching, upstream, good, "good stream", stream=True)

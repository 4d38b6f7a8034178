"""A provider that fails before it has said anything: where somebody else can be asked, they answer, by default."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest

from backends.sse import encode_event
from tests.support.faults import CaseServer, Setting, setting
from tests.support.http_client import Answer, HttpClient, chat_body
from tests.support.servers.openai_server import Behaviour, error, html_error

_NO_BREAKER: dict[str, Any] = {"circuit_breaker": {"consecutive_failures": 1000, "error_rate": 1}}
_ROLE = encode_event(b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}')
_SAID = encode_event(b'{"choices":[{"index":0,"delta":{"content":"half"},"finish_reason":null}]}')
_ERROR = encode_event(b'{"error":{"message":"out of memory","type":"server_error","code":null}}')
_PING = b": ping\n\n"
_CREATED = encode_event(b'{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}')
_WORKING = encode_event(b'{"type":"response.in_progress","response":{"id":"resp_1"}}')
_RESPONSE_FAILED = encode_event(
    b'{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"no"}}}'
)
_CHAT, _RESPONSES = "/v1/chat/completions", "/v1/responses"


class Case(NamedTuple):
    """How the first upstream fails, and how often it may be asked in a route of its own before a fallback."""

    behaviour: Behaviour
    times: int = 2
    path: str = _CHAT


def _model_error(status: int, message: str, code: str) -> Behaviour:
    body = f'{{"error":{{"message":"{message}","type":"invalid_request_error","param":null,"code":"{code}"}}}}'
    return Behaviour(status=status, body=body.encode())


def _events(*events: bytes, **more: Any) -> Behaviour:
    return Behaviour(events=events, cut_after_events=len(events), **more)


_STREAMS = {
    "reset-before-the-head": Case(Behaviour(cut_after_events=0, reset=True, raw=b"")),
    "cut-after-the-role": Case(_events(_ROLE)),
    "reset-after-the-role": Case(_events(_ROLE, reset=True)),
    "cut-after-comments-and-role": Case(_events(_PING, _PING, _ROLE, _PING)),
    "closed-in-good-order-after-the-role": Case(Behaviour(events=(_ROLE,))),
    "error-after-the-role": Case(Behaviour(events=(_ROLE, _ERROR))),
    "error-after-a-comment": Case(Behaviour(events=(_PING, _ERROR))),
    "empty-stream": Case(Behaviour(events=())),
    "500": Case(error(500)),
    "502-of-a-proxy": Case(html_error(502)),
    "response-created-then-cut": Case(_events(_CREATED, _WORKING), path=_RESPONSES),
    "response-created-then-failed": Case(Behaviour(events=(_CREATED, _RESPONSE_FAILED)), path=_RESPONSES),
    "silent-after-the-role": Case(Behaviour(events=(_ROLE, _SAID), stall_after_events=1), times=1),
    "silent-but-for-comments": Case(Behaviour(events=(_PING,) * 100, event_delay_s=0.1), times=1),
    "silent-after-response-created": Case(Behaviour(events=(_CREATED, _WORKING), stall_after_events=1), 1, _RESPONSES),
    "silent": Case(Behaviour(stall_before_head=True), times=1),
}
_WHOLE = {
    "cut-in-the-body": Case(Behaviour(cut_after_bytes=40)),
    "reset-in-the-body": Case(Behaviour(cut_after_bytes=40, reset=True)),
    "half-json": Case(Behaviour(body=b'{"choices":[{"index":0,"mess')),
    "no-json": Case(Behaviour(body=b"<html>welcome</html>", content_type="text/html")),
    "empty-body": Case(Behaviour(body=b"")),
    "no-choices": Case(Behaviour(body=b'{"id":"x","object":"chat.completion","choices":[]}')),
    "401": Case(error(401, "bad key"), times=1),
    "402": Case(error(402, "no credit"), times=1),
    "404-of-the-model": Case(_model_error(404, "The model does not exist", "model_not_found"), times=1),
    "408": Case(error(408)),
    "409": Case(error(409)),
    "413": Case(error(413), times=1),
    "425": Case(error(425)),
    "429": Case(error(429), times=3),
    "503": Case(error(503), times=3),
    "504": Case(error(504), times=1),
    "529": Case(Behaviour(raw=b"HTTP/1.1 529 Overloaded\r\ncontent-length: 2\r\n\r\n{}"), times=3),
    "long-prompt": Case(_model_error(400, "too long", "context_length_exceeded"), times=1),
}
_FINAL = {
    "400": error(400),
    "403": error(403),
    "404": error(404, "no such thing"),
    "422": error(422),
    "content": _model_error(400, "refused", "content_policy_violation"),
}


@pytest.fixture(scope="module")
def site() -> Iterator[Setting]:
    """`pair/*` has two backends, `fallen/*` one and a fallback, `alone/*` one. Only the first token's limit is cut."""
    # Every call of this module fails once, which is more than what may be asked again.
    limits = {"timeouts": {"first_token": "400ms", "total": "20s"}, "retry": {"budget_percent": 100}, **_NO_BREAKER}
    routes: dict[str, Any] = {
        "pair/*": {"backends": [{"ref": "up0"}, {"ref": "up1", "priority": 1}], **limits},
        "fallen/*": {"backends": [{"ref": "up0"}], "fallbacks": {"routes": ["route3"]}, **limits},
        "alone/*": {"backends": [{"ref": "up0"}], **limits},
        "spare": {"match": {"internal": True}, "backends": [{"ref": "up1"}], **_NO_BREAKER},
    }
    with setting(2, routes=routes) as made:
        yield made


@pytest.fixture
async def upstreams(site: Setting) -> AsyncIterator[tuple[CaseServer, CaseServer]]:
    """The first one, which fails, and the second one, which answers."""
    async with CaseServer(site.ports[0]) as first, CaseServer(site.ports[1]) as second:
        yield first, second


async def ask(site: Setting, model: str, *, path: str = _CHAT, stream: bool) -> Answer:
    """One call on a connection of its own."""
    more = {"input": "hello"} if path == _RESPONSES else {}
    client = await HttpClient.open(site.gateway.port)
    try:
        return await client.post(path, chat_body(model=model, stream=stream, **more), timeout_s=10)
    finally:
        client.close()


@pytest.mark.parametrize("route", ["pair", "fallen"])
@pytest.mark.parametrize("name", [*_STREAMS, *_WHOLE])
async def test_call_goes_on_before_anything_was_said(
    site: Setting, upstreams: tuple[CaseServer, CaseServer], route: str, name: str
) -> None:
    """The client gets the other's whole answer, and the one that failed is not asked more often than stated."""
    case = _STREAMS.get(name) or _WHOLE[name]
    upstreams[0].default = case.behaviour
    answer = await ask(site, f"{route}/{name}", path=case.path, stream=name in _STREAMS)

    is_whole = answer.is_whole and b'"error":{' not in answer.body
    if route == "pair" and name in ("413", "long-prompt"):
        # The same model on another server would say the same.
        assert answer.status >= 400
        assert upstreams[1].num_asked == {}
    else:
        assert (answer.status, is_whole) == (200, True), answer.body
        assert sum(upstreams[1].num_asked.values()) == 1
    assert sum(upstreams[0].num_asked.values()) <= (case.times if route == "fallen" else 1)


@pytest.mark.parametrize("route", ["pair", "fallen"])
@pytest.mark.parametrize("name", _FINAL)
async def test_answer_that_is_the_requests_fault_goes_to_the_client(
    site: Setting, upstreams: tuple[CaseServer, CaseServer], route: str, name: str
) -> None:
    """Nobody else is asked what is wrong with the request."""
    upstreams[0].default = _FINAL[name]
    answer = await ask(site, f"{route}/{name}", stream=False)

    assert answer.status == _FINAL[name].status
    assert upstreams[1].num_asked == {}


@pytest.mark.parametrize("name", ["500", "cut-in-the-body", "cut-after-the-role", "silent", "504", "401"])
async def test_call_with_nowhere_else_to_go_is_paid_once(
    site: Setting, upstreams: tuple[CaseServer, CaseServer], name: str
) -> None:
    """What a model may have worked on is not asked of it again."""
    case = _STREAMS.get(name) or _WHOLE[name]
    upstreams[0].default = case.behaviour
    await ask(site, f"alone/{name}", stream=name in _STREAMS)

    assert sum(upstreams[0].num_asked.values()) == 1


@pytest.mark.parametrize("route", ["pair", "fallen"])
async def test_stream_that_has_said_something_is_not_asked_again(
    site: Setting, upstreams: tuple[CaseServer, CaseServer], route: str
) -> None:
    """What came is the client's, and so is the error behind it."""
    upstreams[0].default = _events(_ROLE, _SAID)
    answer = await ask(site, f"{route}/cut", stream=True)

    assert answer.body.startswith(_ROLE + _SAID + b'data: {"error":')
    assert not answer.is_whole
    assert upstreams[1].num_asked == {}


@pytest.mark.parametrize("url", ["http://nobody.invalid/v1", "https://127.0.0.1:{port}/v1", "http://127.0.0.1:1/v1"])
async def test_call_goes_on_where_there_is_no_connection(url: str) -> None:
    """No such name, a server without TLS, a port where nobody listens: the other one answers."""
    async with CaseServer() as other, CaseServer() as plain:
        await _assert_answered(url.format(port=plain.port), other)


async def _assert_answered(url: str, other: CaseServer) -> None:
    route = {"backends": [{"ref": "a"}, {"ref": "b", "priority": 1}], "timeouts": {"connect": "500ms"}}
    with setting(0, backends=_two(url, other.base_url), routes={"*": route}) as made:
        answer = await ask(made, "m", stream=True)

    assert (answer.status, answer.is_whole) == (200, True)


def _two(first: str, second: str) -> dict[str, Any]:
    return {name: {"type": "openai", "base_url": url} for name, url in (("a", first), ("b", second))}


async def test_whole_answer_may_take_the_whole_time() -> None:
    """Nobody knows whether it comes: it is not given up, nor paid twice."""
    route = {"backends": [{"ref": "a"}, {"ref": "b", "priority": 1}], "timeouts": {"total": "2s"}}
    async with CaseServer() as slow, CaseServer() as other:
        slow.default = Behaviour(delay_s=1.3)
        with setting(0, backends=_two(slow.base_url, other.base_url), routes={"*": route}) as made:
            answer = await ask(made, "m", stream=False)

        assert (answer.status, sum(slow.num_asked.values()), other.num_asked) == (200, 1, {})


@pytest.mark.alone
@pytest.mark.timed
async def test_whole_answer_that_never_comes_leaves_the_other_half_of_the_time_where_it_is_listed() -> None:
    """Silence of an answer that is not streamed ends after half of `total`, and the other one has as much."""
    hole = socket.socket()
    hole.bind(("127.0.0.1", 0))
    hole.listen(8)
    retry = {"on": ["first_token_timeout"]}
    route = {"backends": [{"ref": "a"}, {"ref": "b", "priority": 1}], "timeouts": {"total": "2s"}, "retry": retry}
    async with CaseServer() as other:
        url = f"http://127.0.0.1:{hole.getsockname()[1]}/v1"
        with setting(0, backends=_two(url, other.base_url), routes={"*": route}) as made:
            began = time.monotonic()
            answer = await ask(made, "m", stream=False)
            took_s = time.monotonic() - began
    hole.close()

    assert answer.status == 200
    assert 0.95 <= took_s <= 1.6

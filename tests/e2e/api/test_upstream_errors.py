"""What an upstream may say instead of an answer, and what of it a client gets to see."""

from __future__ import annotations

import json

import httpx
import pytest

from backends.errors import error_body
from tests.e2e.conftest import ENVIRON
from tests.support.errors import openai_error
from tests.support.gateway import Gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error, html_error, redirect

CHAT = {"model": "plain", "messages": [{"role": "user", "content": "hi"}]}
MARK = "UPSTREAM-SECRET-TEXT"
PAGE = f"<html><body>{MARK}</body></html>".encode()

REFUSED = {
    "html_200": (Behaviour(body=PAGE, content_type="text/html"), 502, "upstream_invalid_response"),
    "html_404": (Behaviour(status=404, body=PAGE, content_type="text/html"), 502, "upstream_invalid_response"),
    "html_500": (Behaviour(status=500, body=PAGE, content_type="text/html"), 502, "upstream_invalid_response"),
    "html_502": (html_error(502), 502, "upstream_invalid_response"),
    "html_called_json": (Behaviour(body=PAGE), 502, "upstream_invalid_response"),
    "text_200": (Behaviour(body=MARK.encode(), content_type="text/plain"), 502, "upstream_invalid_response"),
    "empty_200": (Behaviour(body=b""), 502, "upstream_invalid_response"),
    "array_200": (Behaviour(body=b"[]"), 502, "upstream_invalid_response"),
    "half_json": (Behaviour(body=b'{"choices":[{"message":{"' + MARK.encode()), 502, "upstream_invalid_response"),
    "redirect": (redirect("http://127.0.0.1:1/evil?" + MARK), 502, "upstream_invalid_response"),
    "key_refused": (Behaviour(status=401, body=error_body(MARK, type="x")), 502, "upstream_authentication_failed"),
    "key_refused_page": (
        Behaviour(status=401, body=PAGE, content_type="text/html"), 502, "upstream_authentication_failed",
    ),
    "closed": (Behaviour(raw=b""), 502, "upstream_cut"),
    "not_http": (Behaviour(raw=MARK.encode() + b"\r\n\r\n"), 502, None),
    "odd_status": (Behaviour(raw=b"HTTP/1.1 99 " + MARK.encode() + b"\r\ncontent-length: 0\r\n\r\n"), 502, None),
    "switching": (Behaviour(raw=b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n"), 502, None),
    "cut_length": (Behaviour(body=b'{"a":"' + MARK.encode() * 20, cut_after_bytes=40), 502, "upstream_cut"),
    "two_lengths": (
        Behaviour(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}}"), 502, None,
    ),
    "bad_chunk": (
        Behaviour(raw=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n"),
        502,
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("behaviour", "status", "code"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("stream", [False, True])
async def test_answer_that_is_none_becomes_an_error_of_ours(
    client: httpx.AsyncClient, upstream: OpenAIServer, behaviour: Behaviour, status: int, code: str | None, stream: bool
) -> None:
    """502 in OpenAI's shape, and not one word of the upstream's in it; a stream that never began is one too."""
    upstream.next(behaviour)

    answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": stream})

    found = openai_error(answer, status)
    assert found["type"] == "upstream_error"
    assert code is None or found["code"] == code
    assert MARK not in answer.text
    assert MARK not in str(answer.headers)
    assert ENVIRON["UPSTREAM_KEY"] not in answer.text
    assert len(upstream.requests) == 1


SHAPES = {
    "flat": (b'{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}', "too long"),
    "detail": (b'{"detail":"too long"}', "too long"),
    "detail_list": (b'{"detail":[{"loc":["body","n"],"msg":"too long","type":"x"}]}', "n: too long"),
    "error_text": (b'{"error":"too long","error_type":"validation"}', "too long"),
    "message": (b'{"message":"too long"}', "too long"),
    "gemini_list": (b'[{"error":{"code":400,"message":"too long","status":"INVALID_ARGUMENT"}}\n]', "too long"),
}


@pytest.mark.parametrize(("body", "message"), SHAPES.values(), ids=SHAPES.keys())
async def test_error_in_a_servers_own_shape_is_put_into_openais(
    client: httpx.AsyncClient, upstream: OpenAIServer, body: bytes, message: str
) -> None:
    """vLLM, FastAPI, TGI: the message is kept, the shape is the one that clients read."""
    upstream.next(Behaviour(status=400, body=body))

    found = openai_error(await client.post("/v1/chat/completions", json=CHAT), 400)

    assert found["message"] == message
    assert found["type"] in ("invalid_request_error", "BadRequestError")


async def test_error_in_openais_shape_keeps_its_bytes(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Fields that nobody knows included."""
    body = b'{ "error" : {"message":"m", "type":"t", "param":"n", "code":"context_length_exceeded", "in":{"a":1.0}}}'
    upstream.next(Behaviour(status=400, body=body))

    answer = await client.post("/v1/chat/completions", json=CHAT)

    assert (answer.status_code, answer.content) == (400, body)


async def test_error_that_is_nearly_json_is_put_into_openais_shape(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """Python's own writer says NaN and Infinity, which no client reads."""
    upstream.next(Behaviour(status=503, body=b'{"error":{"message":"m","type":"t","param":null,"code":-Infinity}}'))

    openai_error(await client.post("/v1/chat/completions", json=CHAT), 503)


@pytest.mark.parametrize("status", [412, 413, 414, 416, 431])
async def test_page_about_what_the_client_has_sent_keeps_its_status(
    client: httpx.AsyncClient, upstream: OpenAIServer, status: int
) -> None:
    """A proxy in front of an upstream has a limit of its own; as a 502 the same would be sent again."""
    upstream.next(Behaviour(status=status, body=PAGE, content_type="text/html"))

    answer = await client.post("/v1/chat/completions", json=CHAT)

    found = openai_error(answer, status)
    assert found["type"] == "invalid_request_error"
    assert f"answered with status {status}" in found["message"]
    assert MARK not in answer.text


@pytest.mark.parametrize("status", [429, 503])
async def test_page_with_a_retry_after_keeps_its_status(
    client: httpx.AsyncClient, upstream: OpenAIServer, status: int
) -> None:
    """The wait is worth more than the page."""
    upstream.next(Behaviour(status=status, body=PAGE, content_type="text/html", headers=(("retry-after", "9"),)))

    answer = await client.post("/v1/chat/completions", json=CHAT)

    openai_error(answer, status)
    assert answer.headers["retry-after"] == "9"
    assert MARK not in answer.text


@pytest.mark.parametrize("stream", [False, True])
async def test_unreachable_upstream_is_502(client: httpx.AsyncClient, stream: bool) -> None:
    """Nobody listens at the upstream's port."""
    answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": stream})

    assert openai_error(answer, 502)["code"] == "upstream_unreachable"


async def test_failure_is_in_the_log_by_its_code(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway
) -> None:
    """The line says what went wrong, whose fault it was, and nothing of what was said."""
    upstream.next(Behaviour(body=PAGE, content_type="text/html"))

    answer = await client.post("/v1/chat/completions", json=CHAT)

    line = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
    assert (line["status"], line["error"], line["backend"]) == (502, "upstream_invalid_response", "up")
    assert MARK not in json.dumps(line)


async def test_error_event_that_opens_a_stream_is_a_real_error(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """A 200 whose first event is an error was an error all along."""
    upstream.next(
        Behaviour(
            events=(
                b'data: {"error":{"message":"overloaded","type":"server_error","code":503}}\n\n',
                b"data: [DONE]\n\n",
            )
        )
    )

    answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})

    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["message"] == "overloaded"


async def test_client_that_leaves_at_an_error_event_is_not_to_blame(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway
) -> None:
    """Clients' libraries leave as soon as they have read that it failed, also where the upstream's connection stays."""
    said = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    broken = b'data: {"error":{"message":"out of memory","type":"server_error","code":500}}\n\n'
    upstream.next(Behaviour(events=(said, broken, said), stall_after_events=2))

    async with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if "out of memory" in line:
                break

    found = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
    assert (found["stream_end"], found["error"]) == ("upstream_cut", "upstream_cut")


async def test_many_errors_do_not_wear_the_gateway_out(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """After a run of failures, the next good answer is one."""
    upstream.next(*(error(500) for _ in range(30)))
    for _ in range(30):
        await client.post("/v1/chat/completions", json=CHAT)

    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200

"""What an upstream may say that is not so: none of it is counted, stops the gateway, or shows what it should not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import httpx
import msgspec
import pytest

from backends.errors import error_body
from backends.sse import DONE_EVENT, encode_event
from tests.support.errors import openai_error
from tests.support.gateway import Gateway, reserved_port, running_gateway
from tests.support.http_client import HttpClient
from tests.support.servers.openai_server import Behaviour, OpenAIServer
from tests.support.servers.raw_server import Peer, RawServer

CHAT = "/v1/chat/completions"
KEY = "sk-upstream-0123456789"
ASKED: dict[str, object] = {"stream_options": {"include_usage": True}}
TENANT = "tenant-4711-secret"
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
DEEP = b"[" * 100_000 + b"]" * 100_000
POLICY = """
version: 1
backends:
  up:
    type: openai
    base_url: "http://127.0.0.1:{port}/v1"
    api_key: "env:UPSTREAM_KEY"
    headers: {{x-tenant-token: "{tenant}"}}
  claude: {{type: anthropic, base_url: "http://127.0.0.1:{port}/v1", api_key: "env:UPSTREAM_KEY"}}
  named: {{type: openai, base_url: "http://models.inner.invalid:8000/v1"}}
  own: {{type: scripted}}
defaults:
  retry: {{attempts: 0}}
  timeouts: {{connect: 2s, first_token: 10s, stream_idle: 10s, total: 30s}}
routes:
  - {{name: safe, match: {{models: [safe]}}, backends: [{{ref: up}}], fallbacks: {{routes: [own]}}}}
  - {{name: own, match: {{models: [own]}}, backends: [{{ref: own}}]}}
  - {{name: claude, match: {{models: [claude]}}, backends: [{{ref: claude}}]}}
  - {{name: named, match: {{models: [named]}}, backends: [{{ref: named}}]}}
  - {{name: up, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where the gateway looks for its upstream."""
    with reserved_port() as port:
        yield port


@pytest.fixture(scope="module")
def gateway(port: int) -> Iterator[Gateway]:
    """One for all of these tests."""
    with running_gateway(POLICY.format(port=port, tenant=TENANT), environ={"UPSTREAM_KEY": KEY}) as gateway:
        yield gateway
        assert "Traceback" not in gateway.stderr


@pytest.fixture
async def upstream(port: int) -> AsyncIterator[OpenAIServer]:
    """This test's own."""
    server = OpenAIServer()
    server.port = port
    async with server:
        yield server


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the gateway."""
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
        yield client


def question(model: str = "m", *, stream: bool = False, **fields: object) -> dict[str, object]:
    """The body of a chat."""
    return {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}], **fields}


async def tokens(gateway: Gateway) -> dict[str, float]:
    """What is counted so far, by kind."""
    metrics = await gateway.metrics()
    return {kind: metrics.value("slipstream_tokens_total", kind=kind) for kind in ("prompt", "completion", "cached")}


LIES = {
    "negative": b"-1",
    "400_digits": b"9" * 400,
    "5000_digits": b"9" * 5000,
    "float": b"7.5",
    "exponent": b"1e999",
    "true": b"true",
    "text": b'"7"',
    "beyond_reason": b"1000000001",
    "list": b"[7]",
    "deep": b"[" * 500 + b"]" * 500,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_number_of_tokens_that_cannot_be_is_not_counted(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway, lie: bytes, stream: bool
) -> None:
    """The answer comes as it is, the other numbers count, and what cached tokens there are is part of the prompt."""
    usage = b'{"prompt_tokens":%b,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}' % lie
    if stream:
        body = encode_event(msgspec.json.encode({"choices": [{**CHOICE, "delta": {"content": "hi"}}]}))
        body += encode_event(b'{"choices":[],"usage":%b}' % usage) + DONE_EVENT
        upstream.next(Behaviour(events=(body,)))
    else:
        body = b'{"choices":%b,"usage":%b}' % (msgspec.json.encode([CHOICE]), usage)
        upstream.next(Behaviour(body=body))
    before = await tokens(gateway)

    answer = await client.post(CHAT, json=question(stream=stream, **ASKED if stream else {}))
    after = await tokens(gateway)

    assert (answer.status_code, answer.content) == (200, body)
    assert {kind: after[kind] - before[kind] for kind in after} == {"prompt": 0, "completion": 3, "cached": 0}
    assert (await client.post(CHAT, json=question())).status_code == 200


@pytest.mark.parametrize("usage", [b'"none"', b"[]", b"17", b'{"prompt_tokens":{}}'])
async def test_usage_that_is_none_costs_nobody_the_answer(
    client: httpx.AsyncClient, upstream: OpenAIServer, usage: bytes
) -> None:
    """Whatever stands where the usage should."""
    body = b'{"choices":%b,"usage":%b}' % (msgspec.json.encode([CHOICE]), usage)
    upstream.next(Behaviour(body=body))

    answer = await client.post(CHAT, json=question())

    assert (answer.status_code, answer.content) == (200, body)


async def test_cached_tokens_are_never_more_than_the_prompt(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway
) -> None:
    """What is not cached is paid in full, and cannot be less than nothing."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 900}}
    upstream.next(Behaviour(body=msgspec.json.encode({"choices": [CHOICE], "usage": usage})))
    before = await tokens(gateway)

    await client.post(CHAT, json=question())
    after = await tokens(gateway)

    assert after["cached"] - before["cached"] == 7


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_messages_api_usage_that_cannot_be_is_not_counted(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway, lie: bytes
) -> None:
    """The other protocol has the same rule."""
    message = {"type": "message", "id": "m", "model": "c", "content": [{"type": "text", "text": "hi"}]}
    body = msgspec.json.encode({**message, "stop_reason": "end_turn"})[:-1]
    body += b',"usage":{"input_tokens":%b,"output_tokens":3}}' % lie
    upstream.next(Behaviour(body=body))
    before = await tokens(gateway)

    answer = await client.post(CHAT, json=question("claude"))
    after = await tokens(gateway)

    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "hi"
    assert answer.json()["usage"]["prompt_tokens"] == 0
    assert (after["prompt"] - before["prompt"], after["completion"] - before["completion"]) == (0, 3)


WAITS = {
    "1000000000": "86400",
    "9" * 400: "86400",
    "7": "7",
    "Fri, 31 Dec 9999 23:59:59 GMT": "86400",
    "-5": None,
    "inf": None,
    "nan": None,
    "soon": None,
}


@pytest.mark.parametrize(("said", "shown"), WAITS.items())
async def test_wait_that_an_upstream_asks_for_is_shown_as_far_as_it_is_believed(
    client: httpx.AsyncClient, upstream: OpenAIServer, said: str, shown: str | None
) -> None:
    """A day is the longest; what is no wait is left out."""
    upstream.next(Behaviour(status=429, headers=(("retry-after", said),), body=error_body("slow", type="x")))

    answer = await client.post(CHAT, json=question())

    assert answer.status_code == 429
    assert answer.headers.get("retry-after") == shown


SECRETS = {
    "key": (f"Incorrect API key: {KEY}.", KEY),
    "bearer": (f"got Authorization: Bearer {KEY}", KEY),
    "header": (f"unknown token {TENANT}", TENANT),
    "base_url": ("upstream http://127.0.0.1:{port}/v1/chat/completions timed out", "127.0.0.1"),
    "address": ("connect to 127.0.0.1:{port} refused", "127.0.0.1"),
}


@pytest.mark.parametrize("escape", [False, True])
@pytest.mark.parametrize("status", [400, 403, 500])
@pytest.mark.parametrize(("message", "secret"), SECRETS.values(), ids=SECRETS.keys())
async def test_error_shows_neither_key_nor_address(
    client: httpx.AsyncClient,
    upstream: OpenAIServer,
    port: int,
    message: str,
    secret: str,
    status: int,
    escape: bool,
) -> None:
    """However JSON writes it; the rest of the message stays."""
    said = json.dumps("Sorry: " + message.replace("{port}", str(port)))
    if escape:
        said = said.replace("s", "\\u0073").replace("1", "\\u0031").replace("/", "\\/")
    upstream.next(Behaviour(status=status, body=b'{"error":{"message":%b,"type":"x"}}' % said.encode()))

    answer = await client.post(CHAT, json=question())

    assert answer.status_code == status
    assert secret not in answer.text
    assert answer.json()["error"]["message"].startswith("Sorry: ")
    assert "[redacted]" in answer.json()["error"]["message"]


@pytest.mark.parametrize("num_before", [0, 1])
async def test_error_in_a_stream_shows_no_key(gateway: Gateway, upstream: OpenAIServer, num_before: int) -> None:
    """As its first event, where it becomes an error answer, and behind others; whatever pieces it comes in."""
    content = encode_event(msgspec.json.encode({"choices": [{"index": 0, "delta": {"content": "hi"}}]}))
    failed = encode_event(msgspec.json.encode({"error": {"message": f"Sorry: {KEY} is wrong", "type": "x"}}))
    events = (*(content,) * num_before, *(failed[at : at + 7] for at in range(0, len(failed), 7)))
    upstream.next(Behaviour(events=events))

    asking = await HttpClient.open(gateway.port)
    answer = await asking.post(CHAT, msgspec.json.encode(question(stream=True)))
    asking.close()

    assert answer.status == (200 if num_before else 502)
    assert b"Sorry: [redacted] is wrong" in answer.body
    assert KEY.encode() not in answer.body


async def test_error_in_the_event_that_finishes_shows_no_key_where_the_stream_then_breaks(
    gateway: Gateway, upstream: OpenAIServer
) -> None:
    """The last event of a stream without its `[DONE]`, which may be held until the end is known."""
    content = encode_event(msgspec.json.encode({"choices": [{"index": 0, "delta": {"content": "hi"}}]}))
    failed = {
        "error": {"message": f"Sorry: {KEY} is wrong", "type": "x"},
        "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
    }
    upstream.next(Behaviour(events=(content, encode_event(msgspec.json.encode(failed)))))

    asking = await HttpClient.open(gateway.port)
    answer = await asking.post(CHAT, msgspec.json.encode(question(stream=True)))
    asking.close()

    assert not answer.is_whole
    assert b"Sorry: [redacted] is wrong" in answer.body
    assert KEY.encode() not in answer.body


async def test_upstream_that_cannot_be_reached_is_called_by_its_name(
    client: httpx.AsyncClient, gateway: Gateway, port: int
) -> None:
    """Addresses are for the log, where each failure is told once."""
    refused = [await client.post(CHAT, json=question(model)) for model in ("m", "m", "named")]

    for answer, name in zip(refused, ("up", "up", "named"), strict=True):
        assert openai_error(answer, 502)["message"] == f'cannot connect to the upstream "{name}"; nothing was sent'
    told = await gateway.wait_stderr(rf'cannot connect to the upstream "up" at 127\.0\.0\.1:{port}: .*refused')
    assert told
    assert gateway.stderr.count(f'"up" at 127.0.0.1:{port}') == 1
    assert "models.inner.invalid:8000" in gateway.stderr


@pytest.mark.parametrize("silence_s", [0.0, 1.0])
async def test_call_is_paid_once_where_the_upstream_closes_in_silence(
    client: httpx.AsyncClient, port: int, silence_s: float
) -> None:
    """`attempts: 0`, a kept connection, the whole request read, and then no answer: asked once and not again."""
    num_asked = 0

    async def serve(peer: Peer) -> None:
        nonlocal num_asked
        await peer.request()
        num_asked += 1
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n")
        peer.send(b'{"choices":[]}')
        await peer.request()
        num_asked += 1
        await asyncio.sleep(silence_s)

    server = RawServer(serve)
    server.port = port
    async with server:
        first = await client.post(CHAT, json=question())
        answer = await client.post(CHAT, json=question())

    assert first.status_code == 200
    assert openai_error(answer, 502)["code"] == "upstream_cut"
    assert num_asked == 2


@pytest.mark.parametrize("status", [600, 999, 0, 99])
@pytest.mark.parametrize("path", [CHAT, "/v1/moderations"])
async def test_status_that_is_none_is_502(
    client: httpx.AsyncClient, upstream: OpenAIServer, status: int, path: str
) -> None:
    """In OpenAI's shape, also where the answer only passes through."""
    upstream.next(Behaviour(raw=b"HTTP/1.1 %03d Odd\r\ncontent-length: 2\r\n\r\n{}" % status))

    openai_error(await client.post(path, json=question()), 502)


DEEP_ANSWERS = {
    "answer": Behaviour(body=b'{"choices":%b}' % DEEP),
    "usage": Behaviour(body=b'{"choices":[],"usage":%b}' % DEEP),
    "error": Behaviour(status=400, body=b'{"error":%b}' % DEEP),
    "error_200": Behaviour(body=b'{"error":%b}' % DEEP),
    "first_event": Behaviour(events=(encode_event(b'{"error":%b}' % DEEP), DONE_EVENT)),
    "event": Behaviour(events=(encode_event(b'{"choices":[]}'), encode_event(b'{"usage":%b}' % DEEP), DONE_EVENT)),
    "later_error": Behaviour(
        events=(encode_event(b'{"choices":[]}'), encode_event(b'{"error":%b}' % DEEP), DONE_EVENT)
    ),
}


@pytest.mark.parametrize("model", ["m", "claude"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("behaviour", DEEP_ANSWERS.values(), ids=DEEP_ANSWERS.keys())
async def test_json_nested_very_deep_passes_or_is_502(
    client: httpx.AsyncClient, upstream: OpenAIServer, behaviour: Behaviour, stream: bool, model: str
) -> None:
    """Never a failure of the gateway's own."""
    upstream.next(behaviour)

    answer = await client.post(CHAT, json=question(model, stream=stream))

    assert answer.status_code in (200, 502)
    if answer.status_code == 502:
        openai_error(answer, 502)


ERRORS = {
    "plain": (b'{"error":{"message":"no room","type":"x"}}', 502),
    "code": (b'{"error":{"message":"no room","code":429}}', 429),
    "text_code": (b'{"error":{"message":"no room","code":"503"}}', 503),
    "text": (b'{"error":"no room"}', 502),
    "huge_code": (b'{"error":{"message":"no room","code":%b}}' % (b"4" * 400), 502),
}
BODIES = {
    CHAT: question(),
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/embeddings": {"model": "m", "input": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("body", "status"), ERRORS.values(), ids=ERRORS.keys())
async def test_success_that_is_an_error_is_one(
    client: httpx.AsyncClient, upstream: OpenAIServer, path: str, body: bytes, status: int
) -> None:
    """So that clients, retries and fallbacks see it; its status is its code where that is one."""
    upstream.next(Behaviour(body=body))

    answer = await client.post(path, json=BODIES[path])

    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert answer.json()["error"]["message"] == "no room"


async def test_success_that_is_an_error_goes_on_to_the_fallback(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """As any other failure does."""
    upstream.next(Behaviour(body=ERRORS["plain"][0]))

    answer = await client.post(CHAT, json=question("safe"))

    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("error", [b"null", b"{}", b'""', b'{"message":"one tool failed"}'])
async def test_answer_that_also_names_an_error_is_an_answer(
    client: httpx.AsyncClient, upstream: OpenAIServer, error: bytes
) -> None:
    """Some providers always send the field."""
    body = b'{"error":%b,"choices":%b}' % (error, msgspec.json.encode([CHOICE]))
    upstream.next(Behaviour(body=body))

    answer = await client.post(CHAT, json=question())

    assert (answer.status_code, answer.content) == (200, body)

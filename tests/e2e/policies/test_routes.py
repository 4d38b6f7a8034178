"""Routes: which call goes where, and what happens when there is no answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.support.errors import openai_error, read_broken
from tests.support.gateway import Gateway, reserved_port, running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

PATH = "/v1/chat/completions"
ENVIRON = {"DEV": "sk-dev-0123456789", "OPS": "sk-ops-0123456789", "GOLD": "sk-gold-0123456789"}
POLICY = """
version: 1
backends:
  a: {{type: openai, base_url: "http://127.0.0.1:{a}/v1"}}
  b: {{type: openai, base_url: "http://127.0.0.1:{b}/v1"}}
  nowhere: {{type: openai, base_url: "http://127.0.0.1:1/v1"}}
  black_hole: {{type: scripted, script: [{{stall_after: 0}}]}}
keys:
  - {{name: dev, key: "env:DEV", tenant: red}}
  - {{name: ops, key: "env:OPS", tenant: red}}
  - {{name: gold, key: "env:GOLD", tenant: gold}}
defaults:
  retry: {{attempts: 0}}
  timeouts: {{connect: 1s, first_token: 5s, stream_idle: 5s, total: 20s}}
routes:
  - name: by-header
    match: {{models: ["where"], headers: {{x-team: "supp*"}}}}
    backends: [{{ref: a, model: by-header}}]
  - {{name: by-key, match: {{models: ["where"], keys: [ops]}}, backends: [{{ref: a, model: by-key}}]}}
  - {{name: by-tenant, match: {{models: ["where"], tenants: [gold]}}, backends: [{{ref: a, model: by-tenant}}]}}
  - name: by-path
    match: {{models: ["where"], paths: [/v1/completions, "/v1/audio/*"]}}
    backends: [{{ref: a, model: by-path}}]
  - {{name: by-glob, match: {{models: ["whe?e", "[xy]-*"]}}, backends: [{{ref: a, model: by-glob}}]}}
  - name: weighted
    match: {{models: [weighted]}}
    backends: [{{ref: a, weight: 3}}, {{ref: b, weight: 1}}]
  - name: failover
    match: {{models: [failover]}}
    backends: [{{ref: nowhere}}, {{ref: b, priority: 1}}]
    retry: {{attempts: 1, backoff: {{initial: 10ms}}}}
  - name: retried
    match: {{models: [retried]}}
    backends: [{{ref: a}}]
    retry:
      attempts: 2
      on: [connect, "429", "500", "503", upstream_cut]
      backoff: {{initial: 10ms, max: 1s}}
      budget_percent: 100
  - name: by-default
    match: {{models: [by-default]}}
    backends: [{{ref: a}}]
    retry: {{attempts: 2, backoff: {{initial: 10ms}}}}
  - name: context
    match: {{models: [context]}}
    backends: [{{ref: a}}]
    fallbacks: {{on: [context_window], routes: [long]}}
  - name: any-trouble
    match: {{models: [any-trouble]}}
    backends: [{{ref: black_hole}}]
    timeouts: {{total: 10s, first_token: 100ms}}
    fallbacks: {{on: [error, timeout], routes: [dead, long]}}
  - {{name: dead, match: {{internal: true}}, backends: [{{ref: nowhere}}]}}
  - {{name: long, match: {{internal: true}}, backends: [{{ref: b, model: long-model}}]}}
  - name: slow
    match: {{models: [slow]}}
    backends: [{{ref: a}}]
    timeouts: {{first_token: 150ms, stream_idle: 150ms, total: 5s}}
  - {{name: short, match: {{models: [short]}}, backends: [{{ref: a}}], timeouts: {{total: 300ms}}}}
  - name: broken
    match: {{models: [broken]}}
    backends: [{{ref: a}}, {{ref: b, priority: 1}}]
    circuit_breaker: {{consecutive_failures: 3, open_for: 300ms}}
"""


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """Where the upstreams `a` and `b` are."""
    with reserved_port() as a, reserved_port() as b:
        yield a, b


@pytest.fixture(scope="module")
def gateway(ports: tuple[int, int]) -> Iterator[Gateway]:
    """One gateway with a route for each subject."""
    with running_gateway(POLICY.format(a=ports[0], b=ports[1]), environ=ENVIRON) as gateway:
        yield gateway


@pytest.fixture
async def upstreams(ports: tuple[int, int]) -> AsyncIterator[tuple[OpenAIServer, OpenAIServer]]:
    """The upstreams `a` and `b`."""
    a, b = OpenAIServer(), OpenAIServer()
    a.port, b.port = ports
    async with a, b:
        yield a, b


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the key `dev`."""
    headers = {"authorization": f"Bearer {ENVIRON['DEV']}"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, verify=False, timeout=20) as client:
        yield client


Upstreams = tuple[OpenAIServer, OpenAIServer]


def chat(model: str, **fields: Any) -> dict[str, Any]:
    """A call."""
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}


@pytest.mark.parametrize(
    ("path", "model", "headers", "expected"),
    [
        (PATH, "where", {"x-team": "support"}, "by-header"),
        (PATH, "where", {"x-team": "supp", "authorization": "Bearer " + ENVIRON["OPS"]}, "by-header"),
        (PATH, "where", {"authorization": "Bearer " + ENVIRON["OPS"]}, "by-key"),
        (PATH, "where", {"authorization": "Bearer " + ENVIRON["GOLD"]}, "by-tenant"),
        ("/v1/completions", "where", {}, "by-path"),
        ("/completions", "where", {}, "by-path"),
        ("/v1/audio/speech", "where", {}, "by-path"),
        (PATH, "where", {}, "by-glob"),
        (PATH, "where", {"x-team": "sales"}, "by-glob"),
        (PATH, "x-1", {}, "by-glob"),
        (PATH, "y-", {}, "by-glob"),
    ],
)
async def test_first_route_whose_conditions_hold_takes_the_call(
    client: httpx.AsyncClient,
    upstreams: Upstreams,
    gateway: Gateway,
    path: str,
    model: str,
    headers: dict[str, str],
    expected: str,
) -> None:
    """Model, path, header, key and tenant, from top to bottom; the log names the route."""
    answer = await client.post(path, json={**chat(model), "prompt": "x"}, headers=headers)

    line = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
    assert answer.status_code == 200
    assert upstreams[0].requests[0].json()["model"] == expected
    assert line["route"] == expected


@pytest.mark.parametrize("model", ["z-1", "WHERE", "wheere", "long", "dead", "x"])
async def test_call_that_no_route_takes_is_404(client: httpx.AsyncClient, upstreams: Upstreams, model: str) -> None:
    """Internal routes are not for clients."""
    assert openai_error(await client.post(PATH, json=chat(model)), 404)["code"] == "model_not_found"


async def test_weights_share_calls(client: httpx.AsyncClient, upstreams: Upstreams) -> None:
    """Three to one, near enough over eighty calls."""
    for _ in range(80):
        await client.post(PATH, json=chat("weighted"))

    counts = Counter({"a": len(upstreams[0].requests), "b": len(upstreams[1].requests)})
    assert counts.total() == 80
    assert 48 <= counts["a"] <= 72


@pytest.mark.parametrize("stream", [False, True])
async def test_next_priority_answers_when_the_first_cannot(
    client: httpx.AsyncClient, upstreams: Upstreams, gateway: Gateway, stream: bool
) -> None:
    """An upstream that nobody reaches is stepped over, and the log counts both attempts."""
    answer = await client.post(PATH, json=chat("failover", stream=stream))

    line = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
    assert answer.status_code == 200
    assert len(upstreams[1].requests) == 1
    assert line["backend"] == "b"
    assert line["attempts"] in (1, 2)


@pytest.mark.parametrize(
    "failure",
    [error(429), error(500), error(503), Behaviour(raw=b"")],
    ids=["429", "500", "503", "closed"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_failure_named_by_the_route_is_retried(
    client: httpx.AsyncClient, upstreams: Upstreams, failure: Behaviour, stream: bool
) -> None:
    """The client sees the answer only, and what is sent again is the same."""
    upstreams[0].next(failure)

    answer = await client.post(PATH, json=chat("retried", stream=stream))

    assert answer.status_code == 200
    assert len(upstreams[0].requests) == 2
    assert len({request.body for request in upstreams[0].requests}) == 1


async def test_failure_that_stays_is_the_last_ones(client: httpx.AsyncClient, upstreams: Upstreams) -> None:
    """After the last attempt its own error comes through."""
    upstreams[0].next(error(500, "first"), error(503, "second"), error(500, "third"))

    answer = await client.post(PATH, json=chat("retried"))

    assert openai_error(answer, 500)["message"] == "third"
    assert len(upstreams[0].requests) == 3


@pytest.mark.timed
async def test_retry_after_is_waited_for(client: httpx.AsyncClient, upstreams: Upstreams) -> None:
    """The upstream says how long; the route says how long at most."""
    upstreams[0].next(Behaviour(status=429, headers=(("retry-after-ms", "200"),), body=b"{}"))
    answer = await client.post(PATH, json=chat("retried"))
    waited_s = upstreams[0].requests[1].at - upstreams[0].requests[0].at
    upstreams[0].next(error(429, retry_after="3600"))
    refused = await client.post(PATH, json=chat("retried"))

    assert answer.status_code == 200
    assert 0.19 <= waited_s < 1
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "3600"
    assert len(upstreams[0].requests) == 3


@pytest.mark.parametrize("failure", [error(400), error(404), error(422), error(500), Behaviour(cut_after_bytes=5)])
async def test_default_policy_retries_nothing_that_may_have_cost(
    client: httpx.AsyncClient, upstreams: Upstreams, failure: Behaviour
) -> None:
    """Client errors never, server errors only where a route asks for it."""
    upstreams[0].next(failure)

    await client.post(PATH, json=chat("by-default"))

    assert len(upstreams[0].requests) == 1


async def test_stream_is_not_retried_after_its_first_byte(client: httpx.AsyncClient, upstreams: Upstreams) -> None:
    """What the client has seen cannot be taken back."""
    upstreams[0].next(Behaviour(cut_after_events=1))

    with pytest.raises(httpx.RemoteProtocolError):
        await client.post(PATH, json=chat("retried", stream=True))

    assert len(upstreams[0].requests) == 1


async def test_first_event_that_is_an_error_is_retried(client: httpx.AsyncClient, upstreams: Upstreams) -> None:
    """Nothing has reached the client yet, so it never learns."""
    upstreams[0].next(Behaviour(events=(b'data: {"error":{"message":"overloaded","type":"x","code":503}}\n\n',)))

    answer = await client.post(PATH, json=chat("retried", stream=True))

    assert answer.content.endswith(b"data: [DONE]\n\n")
    assert len(upstreams[0].requests) == 2


CONTEXT = {
    "code": b'{"error":{"message":"m","type":"t","param":"messages","code":"context_length_exceeded"}}',
    "words": b'{"object":"error","message":"This model\'s maximum context length is 10 tokens.","code":400}',
}


@pytest.mark.parametrize("body", CONTEXT.values(), ids=CONTEXT.keys())
@pytest.mark.parametrize("stream", [False, True])
async def test_call_too_long_for_one_route_goes_to_another(
    client: httpx.AsyncClient, upstreams: Upstreams, gateway: Gateway, body: bytes, stream: bool
) -> None:
    """By the code, or by the words of servers without one; the other route's model is asked."""
    upstreams[0].next(Behaviour(status=400, body=body))

    answer = await client.post(PATH, json=chat("context", stream=stream))

    line = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
    assert answer.status_code == 200
    assert upstreams[1].requests[0].json()["model"] == "long-model"
    assert (line["route"], line["fallback"], line["upstream_model"]) == ("context", "long", "long-model")


async def test_other_errors_do_not_take_that_fallback(client: httpx.AsyncClient, upstreams: Upstreams) -> None:
    """Only what the route names sends a call on."""
    upstreams[0].next(error(500), error(400))
    for status in (500, 400):
        openai_error(await client.post(PATH, json=chat("context")), status)

    assert upstreams[1].requests == []


async def test_fallbacks_are_tried_in_turn(client: httpx.AsyncClient, upstreams: Upstreams) -> None:
    """A stream that does not begin, then a route that cannot be reached, then an answer."""
    answer = await client.post(PATH, json=chat("any-trouble", stream=True))

    assert answer.status_code == 200
    assert len(upstreams[1].requests) == 1


class TestTimeouts:
    """Each limit has its own error, within its time."""

    @pytest.mark.timed
    async def test_first_token(self, client: httpx.AsyncClient, upstreams: Upstreams) -> None:
        """A stream that does not begin is a real 504."""
        upstreams[0].next(Behaviour(stall_before_head=True), Behaviour(stall_after_events=0))
        for index in range(2):
            began = time.monotonic()
            answer = await client.post(PATH, json=chat("slow", stream=True))
            took_s = time.monotonic() - began

            assert openai_error(answer, 504)["code"] == "first_token_timeout"
            assert 0.14 <= took_s < 1
            await upstreams[0].wait_disconnected(index)

    @pytest.mark.timed
    async def test_stream_idle(self, client: httpx.AsyncClient, upstreams: Upstreams, gateway: Gateway) -> None:
        """A stream that falls silent ends with an error event and a broken body."""
        upstreams[0].next(Behaviour(stall_after_events=2))
        began = time.monotonic()
        async with client.stream("POST", PATH, json=chat("slow", stream=True)) as answer:
            received = await read_broken(answer)
        took_s = time.monotonic() - began

        line = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
        assert b'"stream_stalled"' in received
        assert b"[DONE]" not in received
        assert 0.14 <= took_s < 1
        assert (line["stream_end"], line["error"]) == ("stall", "stream_stalled")
        await upstreams[0].wait_disconnected()

    async def test_slow_but_steady_stream_is_left_alone(self, client: httpx.AsyncClient, upstreams: Upstreams) -> None:
        """Silence counts, not duration."""
        upstreams[0].next(Behaviour(text="a b c d e f g h i j", event_delay_s=0.04))

        answer = await client.post(PATH, json=chat("slow", stream=True))

        assert answer.content.endswith(b"data: [DONE]\n\n")

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.timed
    async def test_total(self, client: httpx.AsyncClient, upstreams: Upstreams, stream: bool) -> None:
        """The whole call, whatever it is doing."""
        upstreams[0].next(Behaviour(stall_before_head=True))
        began = time.monotonic()
        answer = await client.post(PATH, json=chat("short", stream=stream))
        took_s = time.monotonic() - began

        assert openai_error(answer, 504)["code"] == "total_timeout"
        assert 0.29 <= took_s < 1
        await upstreams[0].wait_disconnected()


async def test_backend_that_keeps_failing_is_taken_out_and_comes_back(
    client: httpx.AsyncClient, upstreams: Upstreams, gateway: Gateway
) -> None:
    """Three failures open the breaker, the other backend answers, and after its time one call tries again."""
    a = upstreams[0]
    a.default = error(500)
    statuses = [(await client.post(PATH, json=chat("broken"))).status_code for _ in range(6)]
    is_open = (await gateway.metrics()).value("slipstream_breaker_open", route="broken", backend="a")
    a.default = Behaviour()
    num_before = len(a.requests)
    async with asyncio.timeout(5):
        while len(a.requests) == num_before:
            assert (await client.post(PATH, json=chat("broken"))).status_code == 200
            await asyncio.sleep(0.02)
    await client.post(PATH, json=chat("broken"))

    assert statuses == [500, 500, 500, 200, 200, 200]
    assert is_open == 1
    assert num_before == 3
    assert len(a.requests) == num_before + 2
    assert (await gateway.metrics()).value("slipstream_breaker_open", route="broken", backend="a") == 0


async def test_model_of_the_route_is_spliced_in_and_the_answer_left_alone(
    client: httpx.AsyncClient, upstreams: Upstreams
) -> None:
    """The answer's own `model` says what the upstream says."""
    upstreams[0].next(Behaviour(body=b'{"model":"llama-3.1-8b","choices":[]}'))
    body = json.dumps(chat("x-1"), indent=1).encode()

    answer = await client.post(PATH, content=body, headers={"content-type": "application/json"})

    assert upstreams[0].requests[0].body == body.replace(b'"x-1"', b'"by-glob"')
    assert answer.json()["model"] == "llama-3.1-8b"

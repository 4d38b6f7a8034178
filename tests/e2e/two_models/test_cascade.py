"""Cascades through `slipstream serve`: who answers, what is told of it, what it costs, and a draft that fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from policies.speculation.cascade.calibration import calibrate, write_calibration
from tests.support.gateway import Gateway, reserved_port, running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

POLICY = """
version: 1
backends:
  small: {{type: openai, base_url: "http://127.0.0.1:{small}/v1", price: {{input_per_1m: 1, output_per_1m: 1}}}}
  big: {{type: openai, base_url: "http://127.0.0.1:{big}/v1", price: {{input_per_1m: 10, output_per_1m: 10}}}}
  checker: {{type: openai, base_url: "http://127.0.0.1:{checker}/v1", price: {{input_per_1m: 1, output_per_1m: 1}}}}
keys: [{{name: red, key: "env:RED"}}]
ledger: {{url: "sqlite:///{folder}/ledger.sqlite3"}}
defaults: {{timeouts: {{first_token: 2s}}, retry: {{attempts: 0}}}}
routes:
  - name: sure
    match: {{models: [sure]}}
    backends: [{{ref: big}}]
    speculative:
      {{mode: cascade, draft: small, model: tiny, accept: logprob, calibration: {folder}/logprob, quality: 0.9}}
    cache: {{exact: {{ttl: 60s}}}}
  - name: verified
    match: {{models: [verified]}}
    backends: [{{ref: big}}]
    speculative:
      {{mode: cascade, draft: small, accept: verifier, calibration: {folder}/verifier, quality: 0.9,
        verifier: {{route: check, model: checker}}}}
  - name: hasty
    match: {{models: [hasty]}}
    backends: [{{ref: big}}]
    timeouts: {{total: 4s}}
    speculative:
      {{mode: cascade, draft: small, accept: verifier, calibration: {folder}/verifier, quality: 0.9,
        verifier: {{route: check, model: checker}}}}
  - {{name: check, match: {{internal: true}}, backends: [{{ref: checker}}]}}
"""
HEADERS = {"authorization": "Bearer sk-red"}


class Servers:
    """The three upstreams, by what they do in a cascade."""

    def __init__(self, small: OpenAIServer, big: OpenAIServer, checker: OpenAIServer) -> None:
        self.small, self.big, self.checker = small, big, checker


def calibration_of(accept: Any, path: Path) -> None:
    """A draft that is right from a score of -0.5 on, or where the verifier says so."""
    scores = np.repeat([1.0, 0.0] if accept == "verifier" else [-0.1, -0.5, -1.0, -2.0], 100)
    weak = (scores >= (1.0 if accept == "verifier" else -0.5)).astype(float)
    write_calibration(path, calibrate(accept, scores, weak, np.ones(len(scores)), np.random.default_rng(0)))


@pytest.fixture(scope="module")
def gateway_and_ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, list[int]]]:
    """One gateway for all tests, whose upstreams are each test's own."""
    folder = tmp_path_factory.mktemp("cascade")
    calibration_of("logprob", folder / "logprob")
    calibration_of("verifier", folder / "verifier")
    with reserved_port() as small, reserved_port() as big, reserved_port() as checker:
        policy = POLICY.format(small=small, big=big, checker=checker, folder=folder)
        with running_gateway(policy, environ={"RED": "sk-red"}) as gateway:
            yield gateway, [small, big, checker]


@pytest.fixture
def gateway(gateway_and_ports: tuple[Gateway, list[int]]) -> Gateway:
    """The gateway."""
    return gateway_and_ports[0]


@pytest.fixture
async def servers(gateway_and_ports: tuple[Gateway, list[int]]) -> AsyncIterator[Servers]:
    """Upstreams: the target says BIG, the verifier yes."""
    small, big, checker = OpenAIServer(), OpenAIServer(Behaviour(text="BIG")), OpenAIServer(Behaviour(text="Yes."))
    for server, port in zip((small, big, checker), gateway_and_ports[1], strict=True):
        server.port = port
    async with small, big, checker:
        yield Servers(small, big, checker)


def said(*words: tuple[str, float], usage: bool = True) -> Behaviour:
    """A stream of these words with their log-probabilities."""
    chunks: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}]
    chunks += [
        {"delta": {"content": word}, "logprobs": {"content": [{"token": word, "logprob": value, "top_logprobs": []}]}}
        for word, value in words
    ]
    chunks.append({"delta": {}, "finish_reason": "stop"})
    frame = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    bodies: list[dict[str, Any]] = [frame | {"choices": [{"index": 0, **chunk}]} for chunk in chunks]
    if usage:
        counted = {"prompt_tokens": 10, "completion_tokens": len(words), "total_tokens": 10 + len(words)}
        bodies.append(frame | {"choices": [], "usage": counted})
    events = [f"data: {json.dumps(body)}\n\n".encode() for body in bodies]
    return Behaviour(events=(*events, b"data: [DONE]\n\n"), content_type="text/event-stream", event_delay_s=0.0)


async def ask(gateway: Gateway, model: str, text: str, **fields: Any) -> httpx.Response:
    """One call, read to its end."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
    async with httpx.AsyncClient(verify=False, headers=HEADERS, timeout=20) as client:
        return await client.post(f"{gateway.url}/v1/chat/completions", json=body)


async def told_of(gateway: Gateway, request_id: str) -> dict[str, Any]:
    """What the ledger tells of a call, once it is there."""
    async with httpx.AsyncClient(verify=False, headers=HEADERS, timeout=30) as client:
        told: dict[str, Any] = (await client.get(f"{gateway.url}/v1/calls/{request_id}?wait=10")).json()
    return told


def text_of(answer: httpx.Response) -> str:
    """What it says, whole or streamed."""
    if answer.headers["content-type"].startswith("application/json"):
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_sure_answer_of_the_draft_is_served_without_what_was_not_asked_for(
    gateway: Gateway, servers: Servers, stream: bool
) -> None:
    """The draft's words in the client's form, no log-probabilities in them, its own stage, its usage and its price."""
    servers.small.next(said(("it", -0.1), (" is", -0.2)))
    answer = await ask(
        gateway, "sure", f"sure {stream}", stream=stream, stream_options={"include_usage": True} if stream else None
    )

    assert (answer.status_code, text_of(answer)) == (200, "it is")
    assert answer.headers["x-slipstream-stage"] == "draft"
    assert '"logprob":' not in answer.text
    assert servers.big.requests == []
    sent = servers.small.requests[0].json()
    assert (sent["model"], sent["stream"], sent["logprobs"]) == ("tiny", True, True)
    line = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
    assert (line["backend"], line["draft"], line["usage"]["completion_tokens"]) == ("small", "accepted", 2)


async def test_a_stored_answer_says_who_gave_it(gateway: Gateway, servers: Servers) -> None:
    """A hit of the cache has the stage of the answer that was stored."""
    servers.small.next(said(("kept", -0.1)))
    first, second = [await ask(gateway, "sure", "stored") for _ in range(2)]

    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("miss", "hit")
    assert first.headers["x-slipstream-stage"] == second.headers["x-slipstream-stage"] == "draft"
    assert len(servers.small.requests) == 1


async def test_an_unsure_answer_goes_to_the_target_and_what_it_cost_is_told(gateway: Gateway, servers: Servers) -> None:
    """The target answers; the draft's attempt is an extra in the savings."""
    servers.small.next(said(("maybe", -3.0)))
    answer = await ask(gateway, "sure", "unsure")

    assert (text_of(answer), answer.headers["x-slipstream-stage"]) == ("BIG", "target")
    line = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
    assert (line["backend"], line["draft"], line["attempts"]) == ("big", "rejected", 2)
    told = await told_of(gateway, answer.headers["x-request-id"])
    assert told["saved_usd"] == {"extra": "-0.000011"}


async def test_a_lost_answer_is_given_up_in_the_middle(gateway: Gateway, servers: Servers) -> None:
    """After sixteen doubtful tokens nobody waits for the rest, which the draft would have taken minutes for."""
    words = [(f"w{number} ", -4.0) for number in range(600)]
    servers.small.next(Behaviour(events=said(*words).events, content_type="text/event-stream", event_delay_s=0.02))
    answer = await ask(gateway, "sure", "long and doubtful")

    assert answer.headers["x-slipstream-stage"] == "target"
    await servers.small.wait_disconnected(timeout_s=5)
    line = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
    assert line["draft"] == "aborted"
    assert line["total_ms"] < 5000


@pytest.mark.parametrize(
    "failure",
    [
        error(500),
        error(429),
        error(400),
        Behaviour(raw=b""),
        Behaviour(raw=b"garbage"),
        Behaviour(
            events=said(("half", -0.1), ("way", -0.1)).events, content_type="text/event-stream", cut_after_events=2
        ),
        said(("no", -0.1), ("lie", 5.0)),
        Behaviour(text="no log-probabilities"),
        Behaviour(body=b"[]", content_type="application/json"),
        Behaviour(events=(b'data: {"choices": 7}\n\n', b"data: [DONE]\n\n"), content_type="text/event-stream"),
        Behaviour(events=(b"data: " + b"x" * 2**21 + b"\n\n",), content_type="text/event-stream"),
    ],
    ids=["500", "429", "400", "closed", "garbage", "cut", "lie", "no-logprobs", "json", "odd", "huge"],
)
async def test_a_draft_that_fails_never_shows(gateway: Gateway, servers: Servers, failure: Behaviour) -> None:
    """Whatever the draft does, the target answers, and the log says that the draft failed."""
    servers.small.next(failure)
    answer = await ask(gateway, "sure", f"fails {id(failure)}")

    assert (answer.status_code, text_of(answer), answer.headers["x-slipstream-stage"]) == (200, "BIG", "target")


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    ],
    ids=["n", "tools", "image"],
)
async def test_a_call_that_no_calibration_speaks_of_goes_to_the_target(
    gateway: Gateway, servers: Servers, fields: dict[str, Any]
) -> None:
    """Several answers, tools and images: the draft is not asked."""
    answer = await ask(gateway, "sure", "fields", **fields)

    assert (answer.status_code, answer.headers["x-slipstream-stage"]) == (200, "target")
    assert servers.small.requests == []


@pytest.mark.parametrize(("word", "stage"), [("Yes.", "draft"), ("no", "target"), ("perhaps", "target")])
async def test_a_verifier_decides(gateway: Gateway, servers: Servers, word: str, stage: str) -> None:
    """The draft's answer is served where the verifier finds it right."""
    servers.small.default = Behaviour(text="SMALL")
    servers.checker.default = Behaviour(text=word)
    answer = await ask(gateway, "verified", "is it?", stream=True)

    assert answer.headers["x-slipstream-stage"] == stage
    assert text_of(answer) == ("SMALL" if stage == "draft" else "BIG")
    asked = servers.checker.requests[0].json()["messages"][-1]["content"]
    assert asked == "Question:\nis it?\n\nAnswer:\nSMALL"


async def test_a_verifier_that_hangs_leaves_time_for_the_target(gateway: Gateway, servers: Servers) -> None:
    """It gets half of what is left of the call, and what it was asked is paid."""
    servers.small.default = Behaviour(text="SMALL")
    servers.checker.default = Behaviour(stall_before_head=True)
    answer = await ask(gateway, "hasty", "is it?")

    assert (answer.status_code, answer.headers["x-slipstream-stage"]) == (200, "target")
    assert text_of(answer) == "BIG"


async def test_a_client_that_leaves_while_its_answer_is_verified_ends_that(gateway: Gateway, servers: Servers) -> None:
    """The verifier's call is cancelled too, and what it has used by then is in the ledger."""
    servers.small.default = Behaviour(text="SMALL")
    servers.checker.default = Behaviour(stall_before_head=True)
    task = asyncio.create_task(ask(gateway, "verified", "is it, and who left?"))
    await servers.checker.wait_request(timeout_s=10)
    task.cancel()
    await servers.checker.wait_disconnected(timeout_s=10)
    line = await gateway.wait_log(lambda line: line["route"] == "verified" and line["status"] == 499)

    assert servers.big.requests == []
    assert float((await told_of(gateway, line["request_id"]))["saved_usd"]["extra"]) < -0.00005


async def test_a_target_that_fails_shows_as_it_would_alone(gateway: Gateway, servers: Servers) -> None:
    """The target's error is the answer, after the draft's was not good enough."""
    servers.small.next(said(("maybe", -3.0)))
    servers.big.next(error(503, "no room"))
    answer = await ask(gateway, "sure", "both fail")

    assert (answer.status_code, answer.headers["x-slipstream-stage"]) == (503, "target")
    assert "no room" in answer.text

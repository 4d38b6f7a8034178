"""Calls whose upstream does something besides answering are sent once: counted by the upstreams, through a gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import Gateway, reserved_port, running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

POLICY = """
version: 1
backends:
  a: {{type: openai, base_url: "http://127.0.0.1:{a}/v1"}}
  b: {{type: openai, base_url: "http://127.0.0.1:{b}/v1"}}
defaults:
  timeouts: {{connect: 1s, first_token: 800ms, total: 20s}}
  circuit_breaker: {{consecutive_failures: 1000, min_calls: 1000}}
routes:
  - {{name: two, match: {{models: [two]}}, backends: [{{ref: a}}, {{ref: b, priority: 1}}]}}
  - {{name: falls, match: {{models: [falls]}}, backends: [{{ref: a}}], fallbacks: {{routes: [spare]}}}}
  - {{name: spare, match: {{internal: true}}, backends: [{{ref: b}}]}}
  - name: listed
    match: {{models: [listed]}}
    backends: [{{ref: a}}, {{ref: b, priority: 1}}]
    retry: {{on: ["500"]}}
  - name: mirrored
    match: {{models: [mirrored]}}
    backends: [{{ref: a}}]
    mirror: {{to: b, share: 1.0}}
"""
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
MCP = {"tools": [{"type": "mcp", "server_label": "mail", "server_url": "https://mail.example/mcp"}]}
ACTING = [
    pytest.param(RESPONSES, MCP, id="mcp"),
    pytest.param(RESPONSES, {"background": True}, id="background"),
    pytest.param(RESPONSES, {"prompt": {"id": "pmpt_1"}}, id="stored prompt"),
    pytest.param(CHAT, MCP, id="chat with mcp"),
    pytest.param(CHAT, {"mcp_servers": [{"type": "url", "url": "https://mail.example/mcp"}]}, id="chat with servers"),
]
ANSWERING = [
    pytest.param(CHAT, {}, id="chat"),
    pytest.param(CHAT, {"tools": [{"type": "function", "function": {"name": "send"}}]}, id="function"),
    pytest.param(RESPONSES, {"tools": [{"type": "web_search"}]}, id="search"),
    pytest.param(RESPONSES, {}, id="response"),
]
BEGUN = [
    pytest.param(error(500), id="500"),
    pytest.param(error(504), id="504"),
    pytest.param(Behaviour(raw=b""), id="closed"),
    pytest.param(Behaviour(stall_before_head=True), id="silence"),
]
Upstreams = tuple[OpenAIServer, OpenAIServer]


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """Where the upstreams `a` and `b` are."""
    with reserved_port() as a, reserved_port() as b:
        yield a, b


@pytest.fixture(scope="module")
def gateway(ports: tuple[int, int]) -> Iterator[Gateway]:
    """One gateway with a route for each policy."""
    with running_gateway(POLICY.format(a=ports[0], b=ports[1])) as gateway:
        yield gateway


@pytest.fixture
async def upstreams(ports: tuple[int, int]) -> AsyncIterator[Upstreams]:
    """The upstreams `a` and `b`."""
    a, b = OpenAIServer(), OpenAIServer()
    a.port, b.port = ports
    async with a, b:
        yield a, b


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client."""
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
        yield client


def body_of(path: str, model: str, extra: dict[str, Any]) -> dict[str, Any]:
    """A call on that path, streamed, so that silence is seen."""
    asked = {"input": "hi"} if path == RESPONSES else {"messages": [{"role": "user", "content": "hi"}]}
    return {"model": model, "stream": True, **asked, **extra}


async def counted(
    client: httpx.AsyncClient, upstreams: Upstreams, path: str, model: str, extra: dict[str, Any]
) -> tuple[bool, int, int]:
    """Whether the call was answered, and how often each upstream has seen it."""
    answer = await client.post(path, json=body_of(path, model, extra))
    return answer.status_code == 200, len(upstreams[0].requests), len(upstreams[1].requests)


@pytest.mark.parametrize("failure", BEGUN)
@pytest.mark.parametrize("model", ["two", "falls"])
@pytest.mark.parametrize(("path", "extra"), ACTING)
async def test_call_that_acts_is_not_sent_on_once_it_may_have_begun(
    client: httpx.AsyncClient, upstreams: Upstreams, path: str, extra: dict[str, Any], model: str, failure: Behaviour
) -> None:
    """Neither to another backend nor to another route: the client learns of the failure."""
    upstreams[0].next(failure)

    assert await counted(client, upstreams, path, model, extra) == (False, 1, 0)


@pytest.mark.parametrize("failure", [error(429), error(503), error(401), error(404, "no such model")])
@pytest.mark.parametrize("model", ["two", "falls"])
@pytest.mark.parametrize(("path", "extra"), ACTING[:1])
async def test_call_that_acts_goes_on_where_nobody_has_begun(
    client: httpx.AsyncClient, upstreams: Upstreams, path: str, extra: dict[str, Any], model: str, failure: Behaviour
) -> None:
    """Nothing has been done yet, so it is done elsewhere."""
    upstreams[0].default = failure
    is_answered, _, num_elsewhere = await counted(client, upstreams, path, model, extra)

    assert (is_answered, num_elsewhere) == (True, 1)


@pytest.mark.parametrize("failure", BEGUN)
@pytest.mark.parametrize("model", ["two", "falls"])
@pytest.mark.parametrize(("path", "extra"), ANSWERING)
async def test_call_that_only_answers_goes_on_as_ever(
    client: httpx.AsyncClient, upstreams: Upstreams, path: str, extra: dict[str, Any], model: str, failure: Behaviour
) -> None:
    """Paid twice at most, and nothing is done twice: a search reads."""
    upstreams[0].default = failure
    is_answered, _, num_elsewhere = await counted(client, upstreams, path, model, extra)

    assert (is_answered, num_elsewhere) == (True, 1)


@pytest.mark.parametrize(
    ("path", "extra", "num_elsewhere"),
    [
        ("/v1/messages", {}, 1),
        ("/v1/messages", {"mcp_servers": [{"url": "https://x"}]}, 0),
        ("/v1/audio/speech", {}, 0),
    ],
)
@pytest.mark.parametrize("model", ["two", "falls"])
async def test_what_passes_through_goes_on_where_it_is_a_text(
    client: httpx.AsyncClient, upstreams: Upstreams, path: str, extra: dict[str, Any], num_elsewhere: int, model: str
) -> None:
    """A message that only answers, as a chat would; of anything else nobody knows what it has set off."""
    upstreams[0].default = error(500)
    upstreams[1].default = Behaviour(body=b'{"type":"message"}')
    await client.post(path, json={"model": model, "messages": [{"role": "user", "content": "hi"}], **extra})

    assert len(upstreams[1].requests) == num_elsewhere


async def test_list_of_ones_own_holds_for_calls_that_act_too(client: httpx.AsyncClient, upstreams: Upstreams) -> None:
    """Whoever writes `retry.on` has said so."""
    upstreams[0].next(error(500))

    assert await counted(client, upstreams, RESPONSES, "listed", MCP) == (True, 1, 1)


@pytest.mark.parametrize("extra", [MCP, {"mcp_servers": [{"url": "https://x"}]}, {"store": True}, {"plugins": []}])
async def test_mirror_copies_only_what_only_answers(
    client: httpx.AsyncClient, upstreams: Upstreams, extra: dict[str, Any]
) -> None:
    """The candidate gets the copy of the plain call behind it, and no other: nothing is done or kept there."""
    await client.post(CHAT, json=body_of(CHAT, "mirrored", extra))
    await client.post(CHAT, json=body_of(CHAT, "mirrored", {"user": "plain"}))
    copy = await upstreams[1].wait_request(timeout_s=10)

    assert copy.json()["user"] == "plain"
    assert [len(upstream.requests) for upstream in upstreams] == [2, 1]

"""What a client's headers can do: reach an upstream and part cached answers, or neither. Two keys of two tenants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.support.gateway import Gateway, reserved_port, running_gateway
from tests.support.servers.openai_server import OpenAIServer

ENVIRON = {"UPSTREAM_KEY": "sk-upstream-0123", "RED_KEY": "sk-red-0123456789", "BLUE_KEY": "sk-blue-0123456789"}
POLICY = """
version: 1
backends:
  plain:
    type: openai
    base_url: "http://127.0.0.1:{port}/v1"
    api_key: "env:UPSTREAM_KEY"
    headers: {{OpenAI-Organization: org-operator, X-Billing: operator}}
  generous:
    type: openai
    base_url: "http://127.0.0.1:{port}/v1"
    api_key: "env:UPSTREAM_KEY"
    auth_header: x-goog-api-key
    auth_scheme: ""
    headers: {{X-Billing: operator}}
    forward_headers: ["*"]
keys:
  - {{name: red, key: "env:RED_KEY", tenant: red}}
  - {{name: blue, key: "env:BLUE_KEY", tenant: blue}}
routes:
  - {{name: plain, match: {{models: [plain]}}, backends: [{{ref: plain}}], cache: {{scope: global}}}}
  - {{name: generous, match: {{models: [generous]}}, backends: [{{ref: generous}}], cache: {{scope: global}}}}
  - {{name: both, match: {{models: [both]}}, backends: [{{ref: plain}}, {{ref: generous}}], cache: {{scope: global}}}}
  - {{name: windows, match: {{models: [windows]}}, backends: [{{ref: plain}}], batching: {{}}}}
"""
FOREIGN = {
    "x-goog-api-key": "of-the-client",
    "x_goog_api_key": "of-the-client",
    "openai-organization": "of-the-client",
    "openai_organization": "of-the-client",
    "openai-project": "of-the-client",
    "api-key": "of-the-client",
    "x-api-key": "of-the-client",
    "proxy-authorization": "of-the-client",
    "x-amz-security-token": "of-the-client",
    "x-amz-date": "of-the-client",
    "x-auth-token": "of-the-client",
    "cookie": "of-the-client",
    "x-billing": "of-the-client",
    "x_billing": "of-the-client",
    "x-forwarded-user": "of-the-client",
}
TOLD_APART = ["openai-beta", "anthropic-beta", "anthropic-version"]
KEPT_HERE = [
    "accept-language",
    "user-agent",
    "x-custom",
    "x-stainless-lang",
    "accept",
    "idempotency-key",
    "x-session-id",
]


@pytest.fixture(scope="module")
def upstream_port() -> Iterator[int]:
    """Where the upstream is."""
    with reserved_port() as port:
        yield port


@pytest.fixture(scope="module")
def gateway(upstream_port: int) -> Iterator[Gateway]:
    """One for all of these tests."""
    with running_gateway(POLICY.format(port=upstream_port), environ=ENVIRON) as gateway:
        yield gateway


@pytest.fixture
async def upstream(upstream_port: int) -> AsyncIterator[OpenAIServer]:
    """This test's own upstream."""
    server = OpenAIServer()
    server.port = upstream_port
    async with server:
        yield server


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """Without a key of its own."""
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
        yield client


async def _ask(client: httpx.AsyncClient, key: str, model: str, text: str, **headers: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return await client.post(
        "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {ENVIRON[key]}", **headers}
    )


@pytest.mark.parametrize("model", ["plain", "generous", "both"])
@pytest.mark.parametrize("name", [*TOLD_APART, *KEPT_HERE])
async def test_header_of_one_never_shapes_the_answer_of_another(
    client: httpx.AsyncClient, upstream: OpenAIServer, model: str, name: str
) -> None:
    """Either the upstream does not see it, or whoever sends another one is not given that answer."""
    text = f"{model} {name}"
    await _ask(client, "RED_KEY", model, text, **{name: "xx"})
    again = await _ask(client, "BLUE_KEY", model, text, **{name: "yy"})

    reached = any(received.header(name) == "xx" for received in upstream.requests)
    if reached:
        assert again.headers["x-cache"] == "miss"
    elif model != "both":
        assert again.headers["x-cache"] == "hit"
    if model == "plain":
        assert reached == (name in TOLD_APART)


async def test_embeddings_from_a_window_travel_with_their_headers(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """Those that are named, and where they belong in a trace."""
    await client.post(
        "/v1/embeddings",
        json={"model": "windows", "input": "a"},
        headers={"authorization": f"Bearer {ENVIRON['RED_KEY']}", "openai-beta": "b", "traceparent": "00-1-2-01"},
    )

    received = upstream.requests[0]
    assert (received.header("openai-beta"), received.header("traceparent")) == ("b", "00-1-2-01")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/moderations"])
@pytest.mark.parametrize("model", ["plain", "generous"])
async def test_only_the_operators_credentials_travel(
    client: httpx.AsyncClient, upstream: OpenAIServer, model: str, path: str
) -> None:
    """Whatever the client calls itself, and with underscores for dashes too."""
    body = {"model": model, "messages": [{"role": "user", "content": path}], "input": "x"}
    answer = await client.post(path, json=body, headers={"authorization": f"Bearer {ENVIRON['RED_KEY']}", **FOREIGN})

    assert answer.status_code == 200
    received = upstream.requests[0]
    assert not [value for _, value in received.headers if "of-the-client" in value or ENVIRON["RED_KEY"] in value]
    assert [value for name, value in received.headers if name.replace("_", "-") == "x-billing"] == ["operator"]
    if model == "plain":
        assert received.header("openai-organization") == "org-operator"
        assert received.header("authorization") == f"Bearer {ENVIRON['UPSTREAM_KEY']}"
    else:
        assert [v for n, v in received.headers if n.replace("_", "-") == "x-goog-api-key"] == [ENVIRON["UPSTREAM_KEY"]]


async def test_bodies_are_sent_on_as_what_they_were_read_as(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """A charset that the client claims would be another reading than ours."""
    headers = {"content-type": "application/json; charset=utf-16"}
    for model in ("plain", "generous"):
        await _ask(client, "RED_KEY", model, "charset", **headers)

    for received in upstream.requests:
        assert [value for name, value in received.headers if name == "content-type"] == ["application/json"]


async def test_agent_of_the_client_travels_where_the_policy_names_it(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """Else there is the gateway's: some servers turn away who has none."""
    for model in ("plain", "generous"):
        await _ask(client, "RED_KEY", model, "agent", **{"user-agent": "of-the-client/1"})

    assert [received.header("user-agent") for received in upstream.requests] == ["slipstream", "of-the-client/1"]

"""Which paths and methods are answered, by whom, and what refusals look like."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.e2e.conftest import ENVIRON
from tests.support.errors import openai_error
from tests.support.gateway import Gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

CHAT = {"model": "plain", "messages": [{"role": "user", "content": "hi"}]}
ASK = {**CHAT, "prompt": "hi", "input": "hi"}
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
ORIGIN = {"origin": "https://app.example"}
OPERATIONS = ["chat/completions", "completions", "embeddings", "responses"]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("form", ["/v1/{}", "/{}", "/v1/{}/", "/{}/"])
async def test_operation_is_answered_under_every_spelling(
    client: httpx.AsyncClient, upstream: OpenAIServer, operation: str, form: str
) -> None:
    """With and without /v1, with and without a slash at the end: one path upstream, one operation in the log."""
    answer = await client.post(form.format(operation), json=ASK)

    assert answer.status_code == 200
    assert upstream.requests[0].target == f"/v1/{operation}"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("form", ["//v1/{}", "/v1//{}", "///v1///{}//", "//{}"])
async def test_slashes_too_many_are_one(
    gateway: Gateway, upstream: OpenAIServer, client: httpx.AsyncClient, operation: str, form: str
) -> None:
    """As clients write them whose base URL ends in a slash."""
    target = form.format(operation.replace("/", "//"))
    answer = await _ask(gateway, "POST", target, client.build_request("POST", "/", json=ASK).content)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert upstream.requests[0].target == f"/v1/{operation}"


@pytest.mark.parametrize("target", ["//v1//models?a=//b", "//health", "//v1//files//f-1?x=//y"])
async def test_slashes_too_many_are_one_on_every_path(gateway: Gateway, upstream: OpenAIServer, target: str) -> None:
    """And those of the query stay."""
    answer = await _ask(gateway, "GET", target, b"")

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert "files" not in target or upstream.requests[0].target == "/v1/files/f-1?x=//y"


@pytest.mark.parametrize(
    "target",
    [
        "/v1%2fchat/completions",
        "/v1/%2fchat/completions",
        "//v1/..//v1/chat/completions",
        "/v1/x//..;//chat/completions",
        "//v1//%2e//chat/completions",
        "/v1/\\\\chat/completions",
        "//v1//%252e//chat/completions",
        "/v1//chat%00/completions",
        "/v1//chat/completions;x",
    ],
)
async def test_only_slashes_are_joined(gateway: Gateway, upstream: OpenAIServer, target: str) -> None:
    """A path in another spelling is not the operation's, here or behind a proxy that reads it otherwise."""
    await _ask(gateway, "POST", target, b'{"model": "plain", "messages": [{"role": "user", "content": "hi"}]}')

    assert all(request.target != "/v1/chat/completions" for request in upstream.requests)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/v1/Chat/Completions", 404),
        ("POST", "/v1/chat/complet%69ons", 404),
        ("POST", "/v1/RESPONSES/", 404),
        ("POST", "/v1/v1/embeddings", 404),
        ("POST", "/chat/completions%20", 404),
        ("POST", "/v1/chat/%EF%BD%83ompletions", 404),
        ("POST", "/chat/completions;x", 404),
        ("GET", "/v1/Chat/Completions", 404),
        ("PUT", "/v1/chat/completions", 405),
        ("PATCH", "/v1/responses", 405),
        ("DELETE", "/v1/embeddings/", 405),
    ],
)
async def test_operation_in_another_spelling_or_by_another_method_reaches_nobody(
    gateway: Gateway, upstream: OpenAIServer, method: str, target: str, status: int
) -> None:
    """Though everything may pass here: an upstream may be less particular, and nobody would meter it."""
    answer = await _ask(gateway, method, target, b'{"model": "plain", "messages": [{"role": "user", "content": "hi"}]}')

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert upstream.requests == []


async def _ask(gateway: Gateway, method: str, target: str, body: bytes) -> bytes:
    """The answer to a request whose target no client library has put in order."""
    lines = [f"{method} {target} HTTP/1.1", "host: gateway", f"authorization: Bearer {ENVIRON['DEV_KEY']}"]
    lines += ["content-type: application/json", f"content-length: {len(body)}", "connection: close"]
    return await gateway.raw("\r\n".join([*lines, "", ""]).encode() + body)


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/", "/models/"])
async def test_models_are_listed_under_every_spelling(
    client: httpx.AsyncClient, upstream: OpenAIServer, path: str
) -> None:
    """A model picker's first call."""
    answer = await client.get(path)

    listing = answer.json()
    assert listing["object"] == "list"
    assert "alias" in [model["id"] for model in listing["data"]]


@pytest.mark.parametrize(
    "path",
    ["/v1/models/team/alias-2", "/models/team/alias-2", "/v1/models/team%2Falias-2", "/v1/models/team/alias-2/"],
)
async def test_model_with_slashes_is_found(client: httpx.AsyncClient, upstream: OpenAIServer, path: str) -> None:
    """An id with a slash, as it is or percent-encoded."""
    answer = await client.get(path)

    assert answer.status_code == 200
    assert answer.json()["id"] == "team/alias-2"


async def test_query_string_travels(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Azure's api-version, pages of listings: the query is the upstream's, byte for byte."""
    await client.post("/v1/chat/completions?api-version=2024-10-21&x=%2f%20a&&y", json=CHAT)
    await client.get("/v1/files?limit=2&after=f%5f1")

    assert [request.target for request in upstream.requests] == [
        "/v1/chat/completions?api-version=2024-10-21&x=%2f%20a&&y",
        "/v1/files?limit=2&after=f%5f1",
    ]


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models"])
async def test_head_is_a_get_without_its_body(client: httpx.AsyncClient, upstream: OpenAIServer, path: str) -> None:
    """Probes use HEAD; the connection stays usable."""
    head = await client.head(path)
    get = await client.get(path)

    assert (head.status_code, head.content) == (200, b"")
    assert get.status_code == 200
    assert get.content


async def test_head_passes_through(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """The upstream's own HEAD answer, whose length speaks of a body that does not come."""
    answer = await client.head("/v1/files/f-1")

    assert answer.status_code == 200
    assert upstream.requests[0].method == "HEAD"


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_head_says_the_upstreams_status(client: httpx.AsyncClient, upstream: OpenAIServer, status: int) -> None:
    """An error without a body is what HEAD gets, and no sign of a broken upstream; the connection stays usable."""
    upstream.next(Behaviour(status=status, body=b'{"error":{"message":"no"}}', headers=(("retry-after", "7"),)))
    answer = await client.head("/v1/files/f-1")
    after = await client.get("/v1/files/f-1")

    assert (answer.status_code, answer.content, answer.headers["retry-after"]) == (status, b"", "7")
    assert after.status_code == 200


@pytest.mark.parametrize("path", ["/nothing", "/", "/v2/chat/completions", "/v1", "/admin", "/health/x", "/v1chat"])
async def test_path_outside_the_api_is_404(client: httpx.AsyncClient, upstream: OpenAIServer, path: str) -> None:
    """In OpenAI's shape, and not an upstream's business."""
    for method in ("GET", "POST"):
        answer = await client.request(method, path, json=CHAT)

        assert openai_error(answer, 404)["code"] == "unknown_url"
    assert upstream.requests == []


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_method_that_a_page_does_not_take_is_405(client: httpx.AsyncClient, path: str) -> None:
    """In OpenAI's shape, naming what is allowed."""
    answer = await client.post(path)

    assert openai_error(answer, 405)["code"] == "method_not_allowed"
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_operation_by_another_method_is_the_upstreams_matter(
    client: httpx.AsyncClient, upstream: OpenAIServer, operation: str
) -> None:
    """Some servers list stored chats with GET; a refusal in a framework's words is put into OpenAI's shape."""
    upstream.next(Behaviour(status=405, body=b'{"detail":"Method Not Allowed"}', headers=(("allow", "POST"),)))

    answer = await client.get(f"/v1/{operation}?limit=2")

    assert openai_error(answer, 405)["message"] == "Method Not Allowed"
    assert answer.headers["allow"] == "POST"
    assert (upstream.requests[0].method, upstream.requests[0].target) == ("GET", f"/v1/{operation}?limit=2")


async def test_compressed_request_is_415(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """A gzipped body is refused with a word about it, not read as garbage."""
    answer = await client.post("/v1/chat/completions", content=b"\x1f\x8b\x08", headers={"content-encoding": "gzip"})

    assert openai_error(answer, 415)["code"] == "unsupported_media_type"
    assert upstream.requests == []


class TestCors:
    """Pages of the configured origins may call."""

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions", "/v1/models", "/v1/files/x"])
    async def test_preflight_needs_no_key(self, gateway: Gateway, path: str) -> None:
        """A browser sends none with it."""
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            answer = await client.options(path, headers={"origin": "https://other.example", **PREFLIGHT})

        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == "https://other.example"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert "origin" in answer.headers["vary"].lower()

    @pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH", "X-ODD"])
    @pytest.mark.parametrize("names", ["authorization", "x-stainless-os, authorization,x-my-own", None])
    async def test_preflight_is_answered_with_what_it_asked_for(
        self, client: httpx.AsyncClient, method: str, names: str | None
    ) -> None:
        """`*` would not cover authorization, and a list would not cover what the next client sends."""
        asked = {"access-control-request-method": method, "access-control-request-private-network": "true"}
        if names is not None:
            asked["access-control-request-headers"] = names
        answer = await client.options("/v1/chat/completions", headers={**ORIGIN, **asked})

        assert answer.headers["access-control-allow-methods"] == method
        assert answer.headers.get("access-control-allow-headers") == names
        assert answer.headers["access-control-allow-private-network"] == "true"
        assert answer.headers["access-control-allow-origin"] == ORIGIN["origin"]
        assert "access-control-request-headers" in answer.headers["vary"]
        assert "access-control-allow-credentials" not in answer.headers

    @pytest.mark.parametrize("names", ["a b", 'x"', "x: y", "x," * 200 + "x", "é"])
    async def test_names_that_are_none_are_not_said_again(self, gateway: Gateway, names: str) -> None:
        """The answer holds names of fields, whatever was asked."""
        asked = (
            f"access-control-request-method: a/b\r\naccess-control-request-headers: {names}\r\nconnection: close\r\n"
        )
        head = f"OPTIONS /v1/models HTTP/1.1\r\nhost: gateway\r\norigin: {ORIGIN['origin']}\r\n{asked}\r\n"
        answer = await gateway.raw(head.encode())

        assert answer.startswith(b"HTTP/1.1 204 ")
        assert b"access-control-allow-headers" not in answer
        assert b"access-control-allow-methods" not in answer

    async def test_preflight_of_another_origin_allows_nothing(self, client: httpx.AsyncClient) -> None:
        """Origins that are not configured get no permission."""
        answer = await client.options("/v1/chat/completions", headers={"origin": "https://evil.example", **PREFLIGHT})

        assert not [name for name in answer.headers if name.startswith("access-control")]

    @pytest.mark.parametrize("model", ["plain", "no-upstream"])
    async def test_answers_and_errors_may_be_read_by_the_page(
        self, client: httpx.AsyncClient, upstream: OpenAIServer, model: str
    ) -> None:
        """Both carry the origin, or the page could not even show the error."""
        good = await client.post("/v1/chat/completions", json=CHAT, headers={"origin": "https://app.example"})
        bad = await client.post("/v1/chat/completions", json={}, headers={"origin": "https://app.example"})
        models = await client.get("/v1/models", headers={"origin": "https://app.example"})
        other = await client.post("/v1/chat/completions", json=CHAT, headers={"origin": "https://evil.example"})

        for answer in (good, bad, models):
            assert answer.headers.get_list("access-control-allow-origin") == ["https://app.example"]
            assert answer.headers["access-control-expose-headers"] == "*"
        assert "access-control-allow-origin" not in other.headers


class TestRequestId:
    """One id for a request: in the answer, upstream and in the log."""

    @pytest.mark.parametrize("given", ["abc-123", "a" * 128, "00000000-0000-4000-8000-000000000000"])
    async def test_id_of_the_client_is_kept(
        self, client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway, given: str
    ) -> None:
        """A sensible id is echoed, sent on and logged."""
        answer = await client.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": given})

        line = await gateway.wait_log(lambda line: line["request_id"] == given)
        assert answer.headers["x-request-id"] == given
        assert [value for name, value in upstream.requests[0].headers if name == "x-request-id"] == [given]
        assert line["status"] == 200

    @pytest.mark.parametrize("given", [None, "", "a b", "a" * 129, "ümlaut".encode(), 'quo"te', "semi;colon", "{}"])
    async def test_missing_or_odd_id_is_replaced(
        self, client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway, given: str | bytes | None
    ) -> None:
        """An id is made, and it is the same everywhere."""
        headers: Any = {} if given is None else {"x-request-id": given}

        answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)

        made = answer.headers["x-request-id"]
        await gateway.wait_log(lambda line: line["request_id"] == made)
        assert made.startswith("req_")
        assert upstream.requests[0].header("x-request-id") == made

    async def test_ids_are_never_made_twice(self, client: httpx.AsyncClient) -> None:
        """A counter behind a random prefix."""
        answers = [await client.get("/v1/models/scripted") for _ in range(20)]

        assert len({answer.headers["x-request-id"] for answer in answers}) == 20

    @pytest.mark.parametrize(
        ("method", "path", "headers", "status"),
        [
            ("POST", "/v1/chat/completions", {}, 400),
            ("POST", "/v1/chat/completions", {"authorization": "Bearer wrong"}, 401),
            ("GET", "/v1/models/nothing", {}, 404),
            ("GET", "/nothing", {}, 404),
            ("POST", "/health", {}, 405),
            ("POST", "/v1/embeddings", {"content-encoding": "gzip"}, 415),
            ("GET", "/v1/%2e%2e/admin", {}, 404),
        ],
    )
    async def test_errors_carry_the_id_too(
        self, client: httpx.AsyncClient, method: str, path: str, headers: dict[str, str], status: int
    ) -> None:
        """Whoever refuses, with the client's id."""
        answer = await client.request(method, path, headers={"x-request-id": "find-me", **headers})

        openai_error(answer, status)
        assert answer.headers["x-request-id"] == "find-me"


async def test_expectation_of_100_continue_is_met(gateway: Gateway, upstream: OpenAIServer) -> None:
    """curl waits for it with bodies over a megabyte."""
    body = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}]}'
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: bearer {ENVIRON['DEV_KEY']}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "expect: 100-continue\r\nconnection: close\r\n\r\n"
    )

    answer = await gateway.raw(head.encode() + body)

    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")

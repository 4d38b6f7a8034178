"""The twenty-five traps that every proxy for this API falls into, one after the other.

Other tests go deeper into most of them; this is the list, each kept by at least one test of its own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import struct
from pathlib import Path
from typing import Any

import httpx
import openai as sdk
import pytest
from openai import AsyncOpenAI

from backends.errors import error_body
from tests.e2e.conftest import ENVIRON
from tests.support.calls import event_values, streamed_text
from tests.support.errors import openai_error, read_broken
from tests.support.gateway import Gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

MESSAGES = [{"role": "user", "content": "hello there"}]
CHAT: dict[str, Any] = {"model": "plain", "messages": MESSAGES}
STREAM = {**CHAT, "stream": True}
PATH = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def event(**chunk: Any) -> bytes:
    """One event of a chat stream."""
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def delta(content: str, **choice: Any) -> bytes:
    """One event with a piece of text."""
    return event(id="c", object="chat.completion.chunk", created=1, model="m",
                 choices=[{"index": 0, "delta": {"content": content}, "finish_reason": None, **choice}])  # fmt: skip


DONE = b"data: [DONE]\n\n"
END = delta("", finish_reason="stop") + DONE


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_error_before_the_first_byte_of_a_stream_is_a_real_error(
    client: httpx.AsyncClient, upstream: OpenAIServer, status: int
) -> None:
    """Trap 1: no 200 is sent before it is known that the upstream answers."""
    upstream.next(error(status))

    answer = await client.post(PATH, json=STREAM)

    assert openai_error(answer, status)["message"] == "upstream says no"


@pytest.mark.parametrize("num_events", [1, 2, 3])
@pytest.mark.parametrize("reset", [False, True])
async def test_stream_that_dies_does_not_look_finished(
    client: httpx.AsyncClient, upstream: OpenAIServer, num_events: int, reset: bool
) -> None:
    """Trap 2: an error event and a broken body; no [DONE] and no finish reason that nobody gave."""
    upstream.next(Behaviour(cut_after_events=num_events, reset=reset))

    async with client.stream("POST", PATH, json=STREAM) as answer:
        received = await read_broken(answer)

    events = event_values(received)
    assert events[-1]["error"]["code"] == "upstream_cut"
    assert b"[DONE]" not in received
    assert not any(choice.get("finish_reason") for value in events for choice in value.get("choices", ()))


@pytest.mark.parametrize("how", ["cut", "left"])
async def test_half_a_stream_is_not_kept(
    client: httpx.AsyncClient, upstream: OpenAIServer, how: str, request: pytest.FixtureRequest
) -> None:
    """Trap 3: neither what the upstream cut nor what the client left is a later caller's answer."""
    body = {**STREAM, "model": f"cached-half-{how}"}
    upstream.next(Behaviour(cut_after_events=3) if how == "cut" else Behaviour(stall_after_events=3))
    try:
        async with client.stream("POST", PATH, json=body) as answer:
            async for _ in answer.aiter_raw():
                if how == "left":
                    break
    except httpx.RemoteProtocolError:
        assert how == "cut"
    if how == "left":
        await upstream.wait_disconnected()

    again = await client.post(PATH, json=body)

    assert again.headers["x-cache"] == "miss"
    assert len(upstream.requests) == 2
    assert again.content.endswith(DONE)


DIFFERENT: dict[str, dict[str, Any]] = {
    "system": {"messages": [{"role": "system", "content": "be brief"}, *MESSAGES]},
    "history": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *MESSAGES]},
    "role": {"messages": [{**MESSAGES[0], "role": "developer"}]},
    "name": {"messages": [{**MESSAGES[0], "name": "ann"}]},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "response_format": {"response_format": {"type": "json_object"}},
    "seed": {"seed": 1},
    "temperature": {"temperature": 0.5},
    "n": {"n": 2},
    "unknown": {"chat_template_kwargs": {"enable_thinking": False}},
    "null": {"unknown": None},
    "image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,1"}}]}]},
    "unicode_form": {"messages": [{"role": "user", "content": "hello the\u0301re"}]},
}


async def test_cache_knows_calls_by_everything_in_them(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Trap 4: whatever may change the answer makes another call of it, fields that nobody knows too."""
    base = {**CHAT, "model": "cached-identity"}
    outcomes = {}
    await client.post(PATH, json=base)
    for name, change in DIFFERENT.items():
        outcomes[name] = (await client.post(PATH, json={**base, **change})).headers["x-cache"]
    again = await client.post(PATH, json=base)

    assert outcomes == dict.fromkeys(DIFFERENT, "miss")
    assert again.headers["x-cache"] == "hit"


async def test_hit_has_the_form_that_was_asked_for(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Trap 5: JSON kept becomes a stream with role, text, finish reason, [DONE], both choices, usage if asked."""
    body = {**CHAT, "model": "cached-form", "n": 2}
    first = (await client.post(PATH, json=body)).json()
    streamed = await client.post(PATH, json={**body, "stream": True})
    with_usage = await client.post(PATH, json={**body, "stream": True, "stream_options": {"include_usage": True}})

    for answer in (streamed, with_usage):
        assert answer.headers["x-cache"] == "hit"
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.content.endswith(DONE)
        assert streamed_text(answer.content) == first["choices"][0]["message"]["content"]
        choices = [choice for value in event_values(answer.content) for choice in value["choices"]]
        assert choices[0]["delta"]["role"] == "assistant"
        assert {choice["index"] for choice in choices} == {0, 1}
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop", "stop"]
    assert b'"usage":{' not in streamed.content
    assert event_values(with_usage.content)[-1]["usage"] == first["usage"]
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("model", ["plain", "cached-left"])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.timed
async def test_client_that_leaves_takes_the_upstreams_work_with_it(
    client: httpx.AsyncClient, upstream: OpenAIServer, model: str, is_stream: bool
) -> None:
    """Trap 6: streams and plain calls are cancelled upstream, at once and not after a timeout."""
    upstream.next(Behaviour(stall_before_head=True) if not is_stream else Behaviour(stall_after_events=1))
    body = {**CHAT, "model": f"{model}", "stream": is_stream, "seed": 6}
    call = asyncio.create_task(client.post(PATH, json=body))
    await upstream.wait_request(0, timeout_s=5)
    call.cancel()
    left_at = asyncio.get_running_loop().time()
    await asyncio.gather(call, return_exceptions=True)

    assert await upstream.wait_disconnected(0, timeout_s=5) - left_at < 1.0


async def test_shared_upstream_call_is_cancelled_with_its_last_waiter_only(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """Trap 6: of two clients on one upstream call, the first to leave changes nothing for the other."""
    upstream.next(Behaviour(event_delay_s=0.02))
    body = {**STREAM, "model": "cached-last-waiter"}
    async with client.stream("POST", PATH, json=body) as leader:
        pieces_of_leader = leader.aiter_raw()
        await anext(pieces_of_leader)
        async with client.stream("POST", PATH, json=body) as follower:
            pieces = follower.aiter_raw()
            received = await anext(pieces)
            await leader.aclose()
            async for piece in pieces:
                received += piece

    assert follower.headers["x-cache"] == "joined"
    assert received.endswith(DONE)
    assert len(upstream.requests) == 1


async def test_events_leave_as_they_come(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Trap 7: an event is not held back for the next one, whatever stands between client and upstream."""
    upstream.next(Behaviour(events=(delta("one"), delta("two")), stall_after_events=1))

    async with client.stream("POST", PATH, json=STREAM, headers={"accept-encoding": "gzip, br"}) as answer:
        async with asyncio.timeout(2):
            first = await anext(answer.aiter_raw())

    assert first == delta("one")
    assert "content-encoding" not in answer.headers


async def test_encoding_and_length_belong_to_the_body_they_come_with(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """Trap 8: nothing is decompressed on the way, so no header is stale."""
    upstream.next(Behaviour(body=b'{"a":1}', gzip=True), Behaviour(body=b'{"a":1}'))
    for is_gzip in (True, False):
        async with client.stream("POST", PATH, json=CHAT) as answer:
            raw = b"".join([piece async for piece in answer.aiter_raw()])

        assert int(answer.headers["content-length"]) == len(raw)
        assert answer.headers.get("content-encoding") == ("gzip" if is_gzip else None)
        assert raw.startswith(b"\x1f\x8b") == is_gzip


async def test_limits_and_waits_come_back(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Trap 9: Retry-After and x-ratelimit-* on a 429, and an x-request-id on everything."""
    headers = (("retry-after", "12"), ("x-ratelimit-remaining-requests", "0"), ("x-request-id", "up-1"))
    upstream.next(Behaviour(status=429, headers=headers, body=error_body("slow down", type="requests")))

    answer = await client.post(PATH, json=CHAT)

    assert (answer.headers["retry-after"], answer.headers["x-ratelimit-remaining-requests"]) == ("12", "0")
    assert answer.headers["x-request-id"] != "up-1"
    assert answer.headers["x-upstream-request-id"] == "up-1"


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/nothing", b"", 404),
        ("POST", "/health", b"", 405),
        ("POST", PATH, b"[]", 400),
        ("POST", PATH, b"{", 400),
        ("POST", "/v1/embeddings", b"x" * (41 * 1024**2), 413),
    ],
)
async def test_refusals_have_one_shape(
    client: httpx.AsyncClient, method: str, path: str, content: bytes, status: int
) -> None:
    """Trap 10: no framework's {"detail"}, no HTML, no plain text."""
    openai_error(await client.request(method, path, content=content), status)


async def test_codes_that_agents_act_on_are_not_rewritten(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Trap 11: `context_length_exceeded` and its param come as they were sent."""
    body = error_body("too long", type="invalid_request_error", param="messages", code="context_length_exceeded")
    upstream.next(Behaviour(status=400, body=body))

    answer = await client.post(PATH, json=CHAT)

    assert (answer.status_code, answer.content) == (400, body)


async def test_whose_fault_it_is_can_be_told(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway
) -> None:
    """Trap 12: an unknown model is 404, a bad key 401, and the upstream's own 401 is not mistaken for ours."""
    narrow = {"authorization": f"Bearer {ENVIRON['NARROW_KEY']}"}
    unknown = openai_error(await client.post(PATH, json={**CHAT, "model": "nobody"}, headers=narrow), 404)
    bad_key = openai_error(await client.post(PATH, json=CHAT, headers={"authorization": "Bearer x"}), 401)
    upstream.next(error(401))
    upstreams = openai_error(await client.post(PATH, json=CHAT), 502)

    assert unknown["code"] == "model_not_found"
    assert bad_key["code"] == "invalid_api_key"
    assert upstreams["code"] == "upstream_authentication_failed"


async def test_nothing_is_added_dropped_or_turned(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Trap 13: unknown fields and nulls travel both ways, defaults are not put in."""
    sent = (
        b'{"model":"plain","messages":[{"role":"user","content":"a"}],'
        b'"top_k":5,"verbosity":null,"chat_template_kwargs":{}}'
    )
    back = b'{"choices":[],"x_new":{"a":null},"system_fingerprint":null}'
    upstream.next(Behaviour(body=back))

    answer = await client.post(PATH, content=sent, headers=JSON)

    assert upstream.requests[0].body == sent
    assert answer.content == back


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("asks", [False, True])
async def test_usage_chunk_reaches_only_who_asked(
    client: httpx.AsyncClient, upstream: OpenAIServer, gateway: Gateway, asks: bool, spaced: bool
) -> None:
    """Trap 14: the gateway counts every stream by its usage; a client that did not ask never sees that chunk."""
    chunk = {"choices": [], "usage": {"prompt_tokens": 70, "completion_tokens": 7}}
    usage = b"data: %b\n\n" % json.dumps(chunk, separators=None if spaced else (",", ":")).encode()
    upstream.next(Behaviour(events=(delta("a"), delta("", finish_reason="stop"), usage, DONE)))
    options = {"stream_options": {"include_usage": True}} if asks else {}

    answer = await client.post(PATH, json={**STREAM, **options})

    expected = delta("a") + delta("", finish_reason="stop") + (usage if asks else b"") + DONE
    line = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
    assert upstream.requests[0].json()["stream_options"] == {"include_usage": True}
    assert answer.content == expected
    assert line["usage"] == {"prompt_tokens": 70, "completion_tokens": 7, "cached_tokens": 0}


SHAPES = {
    "crlf": (delta("a") + END).replace(b"\n", b"\r\n"),
    "cr": (delta("a") + END).replace(b"\n", b"\r"),
    "no_space": (delta("a") + END).replace(b"data: ", b"data:"),
    "comments": b": hello\n\n" + delta("a") + b": ping\n\n" + END,
    "comment_lines": b": hello\n" + delta("a") + b": ping\n" + END,
    "first_empty": event(choices=[], prompt_filter_results=[{"x": 1}]) + delta("a") + END,
    "megabyte": delta("x" * 2**20) + END,
    "utf8": 'data: {"choices":[{"delta":{"content":"grüße 😀"}}]}\n\n'.encode() + END,
    "usage_null": event(choices=[{"index": 0, "delta": {"content": "a"}}], usage=None) + END,
    "named_events": b"event: message\nid: 1\n" + delta("a") + END,
}  # fmt: skip


@pytest.mark.parametrize("stream", SHAPES.values(), ids=SHAPES.keys())
async def test_streams_of_every_make_come_through(
    client: httpx.AsyncClient, upstream: OpenAIServer, stream: bytes
) -> None:
    """Trap 15: whatever the line ends, comments, sizes and cuts, the bytes are the upstream's."""
    size = 7 if len(stream) < 5000 else 100_000
    pieces = tuple(stream[at : at + size] for at in range(0, len(stream), size))
    upstream.next(Behaviour(events=pieces))

    answer = await client.post(PATH, json=STREAM)

    assert answer.content == stream


async def test_embeddings_come_in_the_form_that_was_asked(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Trap 16: base64 is base64 and floats are floats, from the cache too; order and dimensions hold."""
    base = {"model": "cached-embed", "input": ["one", "two", "three"], "dimensions": 4}
    answers = [
        (await client.post("/v1/embeddings", json={**base, **form})).json()
        for form in ({"encoding_format": "base64"}, {}, {"encoding_format": "base64"}, {"encoding_format": "float"})
    ]

    decoded = [struct.unpack("<4f", base64.b64decode(item["embedding"])) for item in answers[0]["data"]]
    for item, floats in zip(answers[1]["data"], decoded, strict=True):
        assert item["embedding"] == pytest.approx(floats, abs=1e-6)
    assert [item["index"] for item in answers[1]["data"]] == [0, 1, 2]
    assert answers[2] == answers[0]
    assert len(upstream.requests) == 3


async def test_slow_first_token_is_waited_for(gateway: Gateway) -> None:
    """Trap 17: the defaults leave a model with nobody else to ask minutes to begin, not five seconds."""
    from backends.protocol import Timeouts
    from policies.pool.attempts.settings import TimeoutsPolicy

    timeouts = TimeoutsPolicy()

    assert timeouts.first_token is None
    assert Timeouts().first_token_s >= 120
    assert timeouts.total >= 600


@pytest.mark.parametrize(
    "behaviour",
    [error(400), error(404), error(422), error(500), Behaviour(cut_after_bytes=10)],
    ids=["400", "404", "422", "500", "cut"],
)
@pytest.mark.parametrize("is_fresh", [True, False])
async def test_call_that_may_have_reached_the_model_is_not_made_twice(
    client: httpx.AsyncClient, upstream: OpenAIServer, behaviour: Behaviour, is_fresh: bool
) -> None:
    """Trap 18: a POST that may cost money is sent once, on a fresh connection and on a used one."""
    if not is_fresh:
        assert (await client.post(PATH, json=CHAT)).status_code == 200
    upstream.next(behaviour)

    await client.post(PATH, json=CHAT)

    assert len(upstream.requests) == (1 if is_fresh else 2)


async def test_connection_that_closes_without_an_answer_is_no_second_chance(
    client: httpx.AsyncClient, upstream: OpenAIServer
) -> None:
    """Trap 18: on a fresh connection the upstream has read the call; only a stale connection is replaced."""
    upstream.next(Behaviour(raw=b""))

    answer = await client.post(PATH, json=CHAT)

    openai_error(answer, 502)
    assert len(upstream.requests) == 1


async def test_two_hundred_streams_at_once_do_not_mix(upstream: OpenAIServer, gateway: Gateway) -> None:
    """Trap 19: no pool of a hundred connections to wait for, no word of one stream in another."""
    upstream.default = Behaviour(event_delay_s=0.03)

    async def ask(client: httpx.AsyncClient, number: int) -> str:
        body = {**STREAM, "messages": [{"role": "user", "content": f"number-{number}-"}]}
        return (await client.post(PATH, json=body)).text

    limits = httpx.Limits(max_connections=None)
    headers = {"authorization": f"Bearer {ENVIRON['DEV_KEY']}"}
    async with httpx.AsyncClient(
        base_url=gateway.url, verify=False, limits=limits, headers=headers, timeout=60
    ) as client:
        answers = await asyncio.gather(*(ask(client, number) for number in range(200)))

    for number, answer in enumerate(answers):
        assert set(re.findall(r"number-(\d+)-", streamed_text(answer.encode()))) == {str(number)}
    assert upstream.connections_opened > 100


async def test_twenty_megabytes_pass(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Trap 20: a picture of 20 MB in base64 is a request like others."""
    url = "data:image/png;base64," + "A" * 20_000_000
    body = {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    upstream.next(Behaviour(body=b'{"choices":[]}'))

    assert (await client.post(PATH, json=body)).status_code == 200
    assert len(upstream.requests[0].body) > 20_000_000


@pytest.mark.parametrize(
    "body",
    [b"[]", b"null", b"", b'{"model":NaN}', b"[" * 20_000, b'{"a":' * 20_000, b'{"model":1%b}' % (b"0" * 9999),
     b'{"model":"\\ud800"}', b'{"model":"a\\u0000"}', b"\x00", b'"\xff"'],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
async def test_odd_json_is_the_clients_mistake(client: httpx.AsyncClient, body: bytes) -> None:
    """Trap 21: 400 and not 500, whatever it is."""
    openai_error(await client.post(PATH, content=body, headers=JSON), 400)


async def test_scheme_in_lower_case_no_key_and_preflight(gateway: Gateway, upstream: OpenAIServer) -> None:
    """Trap 22: `bearer` is Bearer, no key is 401, and a preflight needs none."""
    async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
        lower = await client.post(PATH, json=CHAT, headers={"authorization": f"bearer {ENVIRON['DEV_KEY']}"})
        none = await client.post(PATH, json=CHAT)
        asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
        preflight = await client.options(PATH, headers=asked)

    assert lower.status_code == 200
    openai_error(none, 401)
    assert preflight.status_code < 300
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"


async def test_models_come_from_the_policy_and_may_have_slashes(openai: AsyncOpenAI, upstream: OpenAIServer) -> None:
    """Trap 23: listed and retrieved by OpenAI's own client."""
    listed = [model.id async for model in openai.models.list()]

    assert "team/alias-2" in listed
    assert (await openai.models.retrieve("team/alias-2")).id == "team/alias-2"
    with pytest.raises(sdk.NotFoundError):
        await openai.models.retrieve("team/other")


@pytest.mark.parametrize("body", [b"{", b'{"model":"plain","messages":[{"role":"user","content":"x"}]}'])
async def test_request_id_is_one_in_answer_and_log(client: httpx.AsyncClient, gateway: Gateway, body: bytes) -> None:
    """Trap 24: on errors too, whether they are the client's or the upstream's."""
    answer = await client.post(PATH, content=body, headers=JSON)

    assert answer.status_code in (400, 502)
    line = await gateway.wait_log(lambda line: line["request_id"] == answer.headers["x-request-id"])
    assert line["status"] == answer.status_code


async def test_clients_secrets_end_at_the_gateway(client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
    """Trap 25: neither cookies nor hop-by-hop fields nor the client's own key go upstream."""
    headers = {"cookie": "a=secret", "te": "trailers", "x-api-key": ENVIRON["DEV_KEY"], "proxy-authorization": "x"}

    await client.post(PATH, json=CHAT, headers=headers)

    received = upstream.requests[0].headers
    assert not {name for name, _ in received} & {*headers, "transfer-encoding", "upgrade"}
    assert not [value for _, value in received if ENVIRON["DEV_KEY"] in value]


def test_every_trap_has_its_test() -> None:
    """The list is whole: each number stands in the docstring of a test above."""
    named = {int(number) for number in re.findall(r'"""Trap (\d+):', Path(__file__).read_text(encoding="utf-8"))}

    assert named == set(range(1, 26))

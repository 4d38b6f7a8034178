"""The exact cache one call at a time: what is answered from the store, what is kept, and what it says about it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from backends.charges.usage import Usage
from backends.errors import UpstreamCut
from backends.operations import Operation
from backends.protocol import CacheOutcome, Call, Reply
from policies.cache.exact import ExactCache
from policies.cache.store_memory import MemoryEntryStore
from tests.support.calls import event_values, make_call, read_all, streamed_text
from tests.support.clock import FakeClock, settle
from tests.support.policy.cache import (
    JSON,
    SSE,
    USAGE_EVENT,
    Exchange,
    Upstream,
    answer_chat,
    chat_answer,
    chat_events,
    make_cache,
)

SHELL = {"type": "shell", "environment": {"type": "container_reference", "container_id": "cntr_1"}}
COALESCE = pytest.mark.parametrize("coalesce", ["off", "wait", "join_stream"])


class RemoteStore(MemoryEntryStore):
    """A store that has nothing at hand: everything is a look-up away."""

    def get_nowait(self, key: bytes) -> None:
        """Nothing."""
        return

    async def get(self, key: bytes) -> Any:
        """After a while."""
        await asyncio.sleep(0)
        return super().get_nowait(key)


async def ask(cache: ExactCache, call: Call) -> tuple[bytes, Reply]:
    """Send a call and read its answer to the end."""
    reply = await cache.send(call)
    return await read_all(reply), reply


def outcome(call: Call, reply: Reply) -> str:
    """What the reply says about the cache, which is what the facts say too."""
    assert call.facts.cache is not None
    assert reply.header(b"x-cache") == call.facts.cache.value.encode()
    return call.facts.cache.value


@COALESCE
@pytest.mark.parametrize("is_remote", [False, True], ids=["memory", "remote"])
async def test_send_of_the_same_call_again_hits(clock: FakeClock, coalesce: str, is_remote: bool) -> None:
    """The second answer is the first one, byte for byte, without an upstream call."""
    upstream = Upstream(answer_chat)
    store = RemoteStore(10**6, clock) if is_remote else None
    cache = make_cache(upstream, clock, store, exact={"coalesce": coalesce})
    first, second = make_call(), make_call()

    body, reply = await ask(cache, first)
    assert (body, outcome(first, reply)) == (chat_answer(), "miss")
    await clock.advance(12.5)
    body, reply = await ask(cache, second)
    assert (body, outcome(second, reply)) == (chat_answer(), "hit")
    assert reply.headers == [(b"content-type", b"application/json"), (b"x-cache", b"hit"), (b"age", b"12")]
    assert second.facts.cache_age_s == pytest.approx(12.5)
    assert second.facts.usage == Usage(3, 2)
    assert len(upstream.exchanges) == 1


@COALESCE
async def test_send_of_the_same_stream_again_replays_it(clock: FakeClock, coalesce: str) -> None:
    """A stream that ended well is replayed, with its usage only if asked."""
    upstream = Upstream(answer_chat)
    cache = make_cache(upstream, clock, exact={"coalesce": coalesce})
    first, second, third = make_call(stream=True), make_call(stream=True), make_call(stream=True, include_usage=True)

    body, reply = await ask(cache, first)
    assert (body, outcome(first, reply)) == (b"".join(chat_events()), "miss")
    body, reply = await ask(cache, second)
    assert (body, outcome(second, reply)) == (b"".join(chat_events()).replace(USAGE_EVENT, b""), "hit")
    body, reply = await ask(cache, third)
    assert (body, outcome(third, reply)) == (b"".join(chat_events()), "hit")
    assert reply.header(b"content-type") == b"text/event-stream; charset=utf-8"
    assert len(upstream.exchanges) == 1


@pytest.mark.parametrize("first_streams", [True, False])
async def test_send_in_the_other_form_hits(clock: FakeClock, first_streams: bool) -> None:
    """What was answered in one form is known in the other."""
    upstream = Upstream(answer_chat)
    cache = make_cache(upstream, clock)
    await ask(cache, make_call(stream=first_streams))
    second = make_call(stream=not first_streams)
    body, reply = await ask(cache, second)

    text = msgspec.json.decode(body)["choices"][0]["message"]["content"] if first_streams else streamed_text(body)
    assert (text, outcome(second, reply)) == ("hello there", "hit")
    expected = b"application/json" if first_streams else b"text/event-stream; charset=utf-8"
    assert reply.header(b"content-type") == expected
    assert len(upstream.exchanges) == 1


async def test_send_in_a_form_that_cannot_be_had_asks_upstream_and_keeps_that(clock: FakeClock) -> None:
    """An answer of an odd shape serves its own form; asked in the other, the new answer takes its place."""
    odd = chat_answer(choices=[{"index": 0, "message": {"content": [1]}, "finish_reason": "stop"}])

    def respond(exchange: Exchange) -> None:
        if exchange.call.stream:
            answer_chat(exchange)
        else:
            exchange.answer(odd)

    upstream = Upstream(respond)
    cache = make_cache(upstream, clock)
    await ask(cache, make_call())
    streamed = make_call(stream=True)
    body, reply = await ask(cache, streamed)
    assert (streamed_text(body), outcome(streamed, reply)) == ("hello there", "miss")
    plain = make_call()
    body, reply = await ask(cache, plain)

    assert outcome(plain, reply) == "hit"
    assert msgspec.json.decode(body)["choices"][0]["message"]["content"] == "hello there"
    assert len(upstream.exchanges) == 2


async def test_send_after_the_time_to_live_misses(clock: FakeClock) -> None:
    """An answer is served only for so long."""
    upstream = Upstream(answer_chat)
    cache = make_cache(upstream, clock, exact={"ttl": "60s"})
    await ask(cache, make_call())
    await clock.advance(60.0)
    await ask(cache, make_call())

    assert len(upstream.exchanges) == 2


@COALESCE
@pytest.mark.parametrize(
    ("control", "outcomes"),
    [
        ("no-cache", ["refresh", "hit"]),
        ("max-age=0", ["refresh", "hit"]),
        ("no-store", ["bypass", "hit"]),
        ("max-age=10", ["miss", "hit"]),
        ("max-age=11", ["hit", "hit"]),
    ],
)
async def test_send_with_cache_control(clock: FakeClock, coalesce: str, control: str, outcomes: list[str]) -> None:
    """A client may ask for a fresh answer, which then serves the others, or for none of this at all."""
    number = 0

    def respond(exchange: Exchange) -> None:
        nonlocal number
        number += 1
        exchange.answer(chat_answer(f"answer {number}"))

    cache = make_cache(Upstream(respond), clock, exact={"coalesce": coalesce})
    await ask(cache, make_call())
    await clock.advance(10.0)
    asked, after = make_call(cache_control=control), make_call()
    _, reply = await ask(cache, asked)
    body, next_reply = await ask(cache, after)

    assert [outcome(asked, reply), outcome(after, next_reply)] == outcomes
    assert body == chat_answer("answer 1" if outcomes[0] in ("hit", "bypass") else "answer 2")


async def test_send_with_cache_control_that_the_route_does_not_honour_hits(clock: FakeClock) -> None:
    """The operator decides what clients may ask for."""
    cache = make_cache(Upstream(answer_chat), clock, client_control=[])
    await ask(cache, make_call())
    call = make_call(cache_control="no-store")
    _, reply = await ask(cache, call)

    assert outcome(call, reply) == "hit"


@pytest.mark.parametrize(
    "call",
    [
        make_call(tenant="a"),
        make_call(operation=Operation.RESPONSES, extra={"conversation": "c"}, user="u"),
        make_call(operation=Operation.RESPONSES, extra={"background": True}, user="u"),
        make_call(operation=Operation.RESPONSES, extra={"tools": [{"type": "mcp"}]}, user="u"),
        make_call(operation=Operation.RESPONSES, extra={"tools": [{"container": "cntr_1"}]}, user="u"),
        make_call(operation=Operation.RESPONSES, extra={"tools": [SHELL]}, user="u"),
        make_call(operation=Operation.RESPONSES, extra={"prompt": {"id": "pmpt_1"}}, user="u"),
        make_call(extra={"tools": [{"type": "mcp"}]}, user="u"),
        make_call(extra={"mcp_servers": [{"url": "https://example.org"}]}, user="u"),
    ],
    ids=["no user", "conversation", "background", "mcp", "container", "shell", "prompt", "chat with mcp", "servers"],
)
async def test_send_of_a_call_that_is_nobody_elses_business_bypasses(clock: FakeClock, call: Call) -> None:
    """Without the identity to share by, or with an answer that depends on more than the call, nothing is cached."""
    is_chat = call.operation is Operation.CHAT
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer() if is_chat else b'{"status":"completed"}'))
    cache = make_cache(upstream, clock, scope="user")
    for _ in range(2):
        _, reply = await ask(cache, call)
        assert outcome(call, reply) == "bypass"

    assert len(upstream.exchanges) == 2


@pytest.mark.parametrize(
    "call", [make_call(operation=Operation.PASSTHROUGH), make_call(body=None, raw=b"x")], ids=["passthrough", "no body"]
)
async def test_send_of_another_operation_goes_straight_through(clock: FakeClock, call: Call) -> None:
    """The cache has no part in it and does not say that it had."""
    upstream = Upstream(lambda exchange: exchange.answer(b"x", headers=[(b"content-type", b"text/plain")]))
    reply = await make_cache(upstream, clock).send(call)

    assert reply.headers == [(b"content-type", b"text/plain")]
    assert call.facts.cache is None


@pytest.mark.parametrize("scope", ["tenant", "key", "user"])
async def test_send_of_another_tenant_never_hits(clock: FakeClock, scope: str) -> None:
    """Equal calls, equal names of keys and users: another tenant's answer is out of reach."""
    upstream = Upstream(lambda exchange: exchange.answer(chat_answer(f"for {exchange.call.tenant}")))
    cache = make_cache(upstream, clock, scope=scope)
    tenants = ["a", "b", "a:1", "", "1:a", "tenant:1:a:", "a\x00"]
    for _ in range(2):
        for tenant in tenants:
            body, _ = await ask(cache, make_call(tenant=tenant, key_id="k", user="u", cache_control="max-age=9"))
            assert body == chat_answer(f"for {tenant}")

    assert len(upstream.exchanges) == len(tenants)


async def test_send_of_another_key_or_user_hits_only_within_its_scope(clock: FakeClock) -> None:
    """The scope says who shares."""
    for scope, expected in (("tenant", 1), ("key", 2), ("user", 2), ("global", 1)):
        upstream = Upstream(answer_chat)
        cache = make_cache(upstream, clock, scope=scope)
        for key_id, user in (("k1", "u1"), ("k2", "u1"), ("k1", "u2")):
            await ask(cache, make_call(tenant="a", key_id=key_id, user=user))
        assert len(upstream.exchanges) == expected


@pytest.mark.parametrize(
    ("asked", "num_asked"),
    [
        ({"operation": Operation.RESPONSES}, 2),
        ({"operation": Operation.RESPONSES, "extra": {"store": False}}, 1),
        ({"extra": {"store": True}}, 2),
        ({"extra": {"audio": {"voice": "a", "format": "wav"}}}, 2),
    ],
    ids=["response", "unkept response", "kept chat", "chat aloud"],
)
async def test_send_of_what_its_upstream_keeps_hits_within_a_tenant_only(
    clock: FakeClock, asked: dict[str, Any], num_asked: int
) -> None:
    """Another one could not go on from it by its id: that is not theirs."""
    answer = msgspec.json.encode({**msgspec.json.decode(chat_answer()), "status": "completed"})
    upstream = Upstream(lambda exchange: exchange.answer(answer))
    cache = make_cache(upstream, clock, scope="global")
    for tenant in ("a", "b", "a", "b"):
        await ask(cache, make_call(tenant=tenant, **asked))

    assert len(upstream.exchanges) == num_asked


async def test_send_on_another_route_or_epoch_misses(clock: FakeClock) -> None:
    """One store serves several routes, and a new epoch forgets the old one."""
    store = MemoryEntryStore(10**6, clock)
    upstream = Upstream(answer_chat)
    for route, epoch in (("a", ""), ("b", ""), ("a", "2"), ("a", "")):
        await ask(make_cache(upstream, clock, store, route, epoch=epoch), make_call())

    assert len(upstream.exchanges) == 3


def _answer_with(status: int = 200, body: bytes = chat_answer(), headers: Any = JSON) -> Any:
    return lambda exchange: exchange.answer(body, status, headers)


@COALESCE
@pytest.mark.parametrize(
    "respond",
    [
        _answer_with(status=500),
        _answer_with(status=429),
        _answer_with(status=400),
        _answer_with(body=b'{"error":{"message":"no"}}'),
        _answer_with(body=chat_answer()[:-5]),
        _answer_with(body=chat_answer("x" * 2000)),
        _answer_with(headers=[*JSON, (b"cache-control", b"no-store")]),
        _answer_with(headers=[(b"content-type", b"text/html")]),
    ],
    ids=["500", "429", "400", "error", "half", "large", "no-store", "html"],
)
async def test_send_again_after_an_answer_that_may_not_be_kept_asks_again(
    clock: FakeClock, coalesce: str, respond: Any
) -> None:
    """It is passed on as it is, and forgotten."""
    upstream = Upstream(respond)
    cache = make_cache(upstream, clock, exact={"coalesce": coalesce, "max_entry": "1KiB"})
    for _ in range(2):
        call = make_call()
        _, reply = await ask(cache, call)
        assert outcome(call, reply) == "miss"

    assert len(upstream.exchanges) == 2


@COALESCE
async def test_send_that_fails_raises_and_keeps_nothing(clock: FakeClock, coalesce: str) -> None:
    """An error of the backend within is the caller's."""
    upstream = Upstream(lambda exchange: exchange.fail(UpstreamCut("gone")))
    cache = make_cache(upstream, clock, exact={"coalesce": coalesce})
    for _ in range(2):
        call = make_call()
        with pytest.raises(UpstreamCut, match="gone"):
            await cache.send(call)
        assert call.facts.cache is CacheOutcome.MISS

    assert len(upstream.exchanges) == 2


async def test_send_replaces_an_upstream_cache_header(clock: FakeClock) -> None:
    """One field says one thing: what this cache did."""
    upstream = Upstream(lambda exchange: exchange.answer(b"{}", 500, [*JSON, (b"x-cache", b"Hit from cdn")]))
    reply = await make_cache(upstream, clock).send(make_call())

    assert reply.headers == [*JSON, (b"x-cache", b"miss")]


async def test_embeddings_and_responses_are_replayed_verbatim(clock: FakeClock) -> None:
    """No conversion: JSON as it was, each form by itself."""
    embedding = b'{"object":"list","data":[{"embedding":"AACAPw=="}],"usage":{"prompt_tokens":1}}'
    completed = b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{"a":1}}}\n\n'

    def respond(exchange: Exchange) -> None:
        if exchange.call.operation is Operation.EMBEDDING:
            exchange.answer(embedding)
        elif exchange.call.stream:
            exchange.begin(headers=SSE)
            exchange.feed(completed)
            exchange.end()
        else:
            exchange.answer(b'{"status":"completed"}')

    upstream = Upstream(respond)
    cache = make_cache(upstream, clock)
    for _ in range(2):
        for operation, stream, expected in (
            (Operation.EMBEDDING, False, embedding),
            (Operation.RESPONSES, False, b'{"status":"completed"}'),
            (Operation.RESPONSES, True, completed),
        ):
            body, _ = await ask(cache, make_call(operation=operation, stream=stream))
            assert body == expected
    assert len(upstream.exchanges) == 3


async def test_embeddings_in_another_format_are_other_calls(clock: FakeClock) -> None:
    """base64 and floats, and other dimensions, are never mistaken for each other."""
    upstream = Upstream(lambda exchange: exchange.answer(b'{"data":[{}]}'))
    cache = make_cache(upstream, clock)
    for extra in ({}, {"encoding_format": "base64"}, {"encoding_format": "float"}, {"dimensions": 8}):
        await ask(cache, make_call(operation=Operation.EMBEDDING, extra=extra))

    assert len(upstream.exchanges) == 4


async def test_cache_is_a_backend_around_another(clock: FakeClock) -> None:
    """Name, capabilities and counters are those of the backend within, which it opens and closes."""
    upstream = Upstream(answer_chat)
    cache = make_cache(upstream, clock)
    await cache.open()
    await ask(cache, make_call())

    assert (cache.name, cache.capabilities) == (upstream.name, upstream.capabilities)
    assert cache.statistics().sent == 1
    assert upstream.is_open
    await cache.aclose()
    await cache.aclose()
    assert not upstream.is_open


async def test_hit_starts_no_task(clock: FakeClock) -> None:
    """A hit is an ordinary function call: the coroutine ends without waiting for anything."""
    cache = make_cache(Upstream(answer_chat), clock)
    await ask(cache, make_call())
    await settle()
    tasks = asyncio.all_tasks()
    sending = cache.send(make_call())
    with pytest.raises(StopIteration) as ended:
        sending.send(None)

    assert ended.value.value.body == chat_answer()
    assert asyncio.all_tasks() == tasks


async def test_hit_of_json_as_stream_with_usage_has_it_last(clock: FakeClock) -> None:
    """The converted stream ends like a live one."""
    cache = make_cache(Upstream(answer_chat), clock)
    await ask(cache, make_call())
    body, _ = await ask(cache, make_call(stream=True, include_usage=True))

    assert event_values(body)[-1]["choices"] == []
    assert event_values(body)[-1]["usage"]["total_tokens"] == 5

"""Identical calls in flight when the answer is an error, half an answer, or too late: who is told, who tries again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backends.errors import InternalError, TotalTimeout, UpstreamCut
from backends.protocol import Reply
from tests.support.calls import make_call, read_all
from tests.support.clock import FakeClock, settle
from tests.support.policy.cache import Exchange, Upstream, chat_answer, chat_events, make_cache, start

EVENTS = chat_events()
WHOLE = b"".join(EVENTS)


async def read_some(reply: Reply) -> bytes:
    """The next piece of a stream, which has to be there already."""
    assert reply.stream is not None
    async with asyncio.timeout(10):
        return await reply.stream.read()


@pytest.mark.parametrize("stream", [False, True])
async def test_thousand_identical_calls_whose_leader_dies_make_two(clock: FakeClock, stream: bool) -> None:
    """One of them takes over, the others join that one; only the first call fails."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    calls = [make_call(stream=stream, include_usage=True) for _ in range(1000)]
    asking = [asyncio.ensure_future(cache.send(call)) for call in calls]
    await settle()
    if stream:
        upstream.exchanges[0].begin()
        await settle()
    upstream.exchanges[0].fail(UpstreamCut("gone"))
    await settle()
    assert len(upstream.exchanges) == 2
    second = upstream.exchanges[1]
    if stream:
        second.begin()
        second.feed(*EVENTS)
        second.end()
    else:
        second.answer(chat_answer())
    results = await asyncio.gather(*(_body_or_error(task) for task in asking))

    assert isinstance(results[0], UpstreamCut)
    assert results[1:] == [WHOLE if stream else chat_answer()] * 999
    assert len(upstream.exchanges) == 2


async def _body_or_error(asking: asyncio.Task[Reply]) -> bytes | UpstreamCut:
    try:
        return await read_all(await asking)
    except UpstreamCut as error:
        return error


async def test_stream_cut_after_bytes_fails_for_everyone_who_has_some(clock: FakeClock) -> None:
    """Nobody is given two halves of two answers; who has nothing yet starts anew."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    leading, following = await start(cache, make_call(stream=True), make_call(stream=True))
    first = upstream.exchanges[0]
    first.begin()
    first.feed(*EVENTS[:3])
    replies = [await leading, await following]
    assert [await read_some(reply) for reply in replies] == [b"".join(EVENTS[:3])] * 2
    waiting = asyncio.ensure_future(cache.send(make_call()))
    await settle()
    first.fail(UpstreamCut("gone"))
    for reply in replies:
        with pytest.raises(UpstreamCut, match="gone"):
            await read_some(reply)
        assert reply.stream is not None
        assert reply.stream.end == "upstream_cut"
        await reply.aclose()
    await settle()
    upstream.exchanges[1].answer(chat_answer())

    assert await read_all(await waiting) == chat_answer()
    assert len(upstream.exchanges) == 2


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_error_that_everyone_would_get_is_shared(clock: FakeClock, status: int) -> None:
    """An upstream need not refuse the same call twice."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    asking = await start(cache, make_call(), make_call(stream=True))
    upstream.exchanges[0].answer(b'{"error":{}}', status)
    replies = [await task for task in asking]

    assert [(reply.status, reply.body) for reply in replies] == [(status, b'{"error":{}}')] * 2
    assert [reply.header(b"x-cache") for reply in replies] == [b"miss", b"joined"]
    assert len(upstream.exchanges) == 1


@pytest.mark.parametrize("status", [429, 500, 503, 401, 200])
async def test_error_that_may_pass_is_not_shared(clock: FakeClock, status: int) -> None:
    """The first call gets it, the next one tries again for the rest."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    asking = await start(cache, make_call(), make_call(), make_call())
    upstream.exchanges[0].answer(b'{"error":{"message":"no"}}', status)
    await settle()
    upstream.exchanges[1].answer(chat_answer())
    replies = [await task for task in asking]

    assert [reply.status for reply in replies] == [status, 200, 200]
    assert len(upstream.exchanges) == 2


@pytest.mark.parametrize("failure", ["error", "status", "stream"])
async def test_upstream_that_stays_broken_is_asked_a_few_times_only(clock: FakeClock, failure: str) -> None:
    """A hundred callers are no hundred attempts, and each of them learns why there is no answer."""

    def respond(exchange: Exchange) -> None:
        if failure == "error":
            exchange.fail(UpstreamCut("gone"))
        elif failure == "status":
            exchange.answer(b'{"error":{}}', 503)
        else:
            exchange.begin(503)
            exchange.feed(b"sorry")
            exchange.end()

    upstream = Upstream(respond)
    cache = make_cache(upstream, clock)
    asking = [asyncio.ensure_future(cache.send(make_call(stream=True))) for _ in range(100)]
    results = await asyncio.gather(*asking, return_exceptions=True)
    for result in results:
        if isinstance(result, Reply):
            assert result.status == 503
            assert await read_all(result) in (b'{"error":{}}', b"sorry")
        else:
            assert isinstance(result, UpstreamCut)

    assert len({id(result) for result in results}) == 100
    assert len(upstream.exchanges) == 3


async def test_follower_keeps_its_own_deadline(clock: FakeClock) -> None:
    """Joining does not make a call wait longer than it may; the others are not disturbed."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    hurried = make_call(deadline=clock.now() + 0.02)
    leading, following = await start(cache, make_call(deadline=clock.now() + 60), hurried)
    with pytest.raises(TotalTimeout):
        await following
    upstream.exchanges[0].answer(chat_answer())

    assert await read_all(await leading) == chat_answer()


async def test_reader_keeps_its_own_deadline_in_a_stream(clock: FakeClock) -> None:
    """Also once it reads."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    hurried = make_call(stream=True, deadline=clock.now() + 0.02)
    leading, following = await start(cache, make_call(stream=True, deadline=clock.now() + 60), hurried)
    upstream.exchanges[0].begin()
    upstream.exchanges[0].feed(EVENTS[0])
    follower = await following
    assert await read_some(follower) == EVENTS[0]
    with pytest.raises(TotalTimeout):
        await read_some(follower)
    await follower.aclose()
    upstream.exchanges[0].feed(*EVENTS[1:])
    upstream.exchanges[0].end()

    assert await read_all(await leading) == WHOLE


async def test_bug_of_the_backend_within_is_an_internal_error_for_all(clock: FakeClock) -> None:
    """Nobody waits for ever, and the cause travels along for the log."""

    def respond(exchange: Exchange) -> None:
        raise ZeroDivisionError

    cache = make_cache(Upstream(respond), clock)
    with pytest.raises(InternalError) as caught:
        await cache.send(make_call())

    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_answers_that_cannot_be_shared_are_asked_for_again(clock: FakeClock) -> None:
    """A compressed or foreign answer is the leader's only; followers ask for themselves."""
    odd: Any = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    asking = await start(cache, make_call(), make_call(), make_call())
    for exchange in upstream.exchanges:
        exchange.answer(b"\x1f\x8b", headers=odd)
    await settle()
    assert len(upstream.exchanges) == 3
    for exchange in upstream.exchanges[1:]:
        exchange.answer(b"\x1f\x8b", headers=odd)

    assert [await read_all(await task) for task in asking] == [b"\x1f\x8b"] * 3


async def test_stream_that_cannot_be_shared_is_asked_for_again(clock: FakeClock) -> None:
    """The same holds for a stream of a foreign type."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    leading, following = await start(cache, make_call(stream=True), make_call(stream=True))
    for number in range(2):
        upstream.exchanges[number].begin(headers=[(b"content-type", b"application/x-ndjson")])
        upstream.exchanges[number].feed(b"{}")
        upstream.exchanges[number].end()
        await settle()

    assert [await read_all(await task) for task in (leading, following)] == [b"{}"] * 2
    assert len(upstream.exchanges) == 2

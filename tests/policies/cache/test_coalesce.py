"""Identical calls in flight: one upstream call, everybody served, whoever leaves or dies on the way."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from backends.charges.usage import Usage
from backends.errors import Draining
from backends.protocol import CacheOutcome, Reply
from policies.cache.entry import Entry
from policies.cache.store_memory import MemoryEntryStore
from tests.support.calls import make_call, read_all, streamed_text
from tests.support.clock import FakeClock, settle
from tests.support.policy.cache import SSE, Upstream, chat_answer, chat_events, make_cache, start

EVENTS = chat_events()
WHOLE = b"".join(EVENTS)


async def read_some(reply: Reply) -> bytes:
    """The next piece of a stream, which has to be there already."""
    assert reply.stream is not None
    async with asyncio.timeout(10):
        return await reply.stream.read()


async def leave(reply: Reply) -> None:
    """Close a reply, and let what follows from it happen."""
    await reply.aclose()
    await settle()


@pytest.mark.parametrize("stream", [False, True])
async def test_thousand_identical_calls_make_one_upstream_call(clock: FakeClock, stream: bool) -> None:
    """Exactly one, and everybody has the whole answer."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    calls = [make_call(stream=stream, include_usage=True) for _ in range(1000)]
    asking = [asyncio.ensure_future(cache.send(call)) for call in calls]
    await settle()
    exchange = upstream.exchanges[0]
    if stream:
        exchange.begin()
        exchange.feed(*EVENTS)
        exchange.end()
    else:
        exchange.answer(chat_answer())
    bodies = [await read_all(reply) for reply in await asyncio.gather(*asking)]

    assert bodies == [WHOLE if stream else chat_answer()] * 1000
    assert len(upstream.exchanges) == 1
    outcomes = [call.facts.cache for call in calls]
    assert outcomes == [CacheOutcome.MISS] + [CacheOutcome.JOINED] * 999
    assert all(call.facts.usage == Usage(3, 2) and call.facts.backend == "upstream" for call in calls)


async def test_follower_of_a_stream_catches_up_and_goes_on_live(clock: FakeClock) -> None:
    """It gets everything from the beginning at once, and each later piece as it comes."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    (leading,) = await start(cache, make_call(stream=True))
    exchange = upstream.exchanges[0]
    exchange.begin()
    exchange.feed(*EVENTS[:2])
    leader = await leading
    assert await read_some(leader) == EVENTS[0] + EVENTS[1]
    call = make_call(stream=True)
    follower = await cache.send(call)

    assert await read_some(follower) == EVENTS[0] + EVENTS[1]
    for piece in EVENTS[2:]:
        reads = [asyncio.ensure_future(read_some(reply)) for reply in (leader, follower)]
        await settle()
        assert not any(read.done() for read in reads)
        exchange.feed(piece)
        assert await asyncio.gather(*reads) == [piece, piece]
    exchange.end()
    assert [await read_some(leader), await read_some(follower)] == [b"", b""]
    assert follower.headers == [*SSE, (b"x-cache", b"joined")]
    assert call.facts.cache is CacheOutcome.JOINED
    assert call.facts.usage == Usage(3, 2)


async def test_leader_leaving_does_not_stop_the_others(clock: FakeClock) -> None:
    """The upstream call belongs to everybody who reads it."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    leading, following = await start(cache, make_call(stream=True), make_call(stream=True))
    exchange = upstream.exchanges[0]
    exchange.begin()
    exchange.feed(EVENTS[0])
    leader, follower = await leading, await following
    await leave(leader)
    assert not exchange.is_closed
    exchange.feed(*EVENTS[1:])
    exchange.end()

    assert await read_all(follower) == WHOLE
    hit = make_call(stream=True, include_usage=True)
    assert await read_all(await cache.send(hit)) == WHOLE
    assert hit.facts.cache is CacheOutcome.HIT


@pytest.mark.parametrize("stream", [False, True])
async def test_last_reader_leaving_before_the_answer_cancels_upstream(clock: FakeClock, stream: bool) -> None:
    """Whether leader or follower: only when nobody waits any more, and then at once."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    leading, following = await start(cache, make_call(stream=stream), make_call(stream=stream))
    leading.cancel()
    await settle()
    assert not upstream.exchanges[0].is_closed
    following.cancel()
    await settle()

    assert upstream.exchanges[0].is_closed
    assert leading.cancelled()
    assert following.cancelled()


async def test_last_reader_leaving_a_stream_cancels_upstream_and_keeps_nothing(clock: FakeClock) -> None:
    """A stream nobody reads is closed; half an answer is no answer; the next call starts anew."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    leading, following = await start(cache, make_call(stream=True), make_call(stream=True))
    exchange = upstream.exchanges[0]
    exchange.begin()
    exchange.feed(*EVENTS[:3])
    leader, follower = await leading, await following
    await leave(leader)
    await leave(leader)
    assert not exchange.is_closed
    await follower.aclose()
    await asyncio.sleep(0)
    await follower.aclose()
    joining = asyncio.ensure_future(cache.send(make_call(stream=True)))
    await settle()

    assert exchange.is_closed
    assert len(upstream.exchanges) == 2
    joining.cancel()
    await settle()


async def test_plain_call_joins_a_stream_and_a_stream_a_plain_call(clock: FakeClock) -> None:
    """The form is each call's own affair."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    streaming, plain = await start(cache, make_call("one", stream=True), make_call("one"))
    upstream.exchanges[0].begin()
    upstream.exchanges[0].feed(*EVENTS)
    upstream.exchanges[0].end()
    assert await read_all(await streaming) == WHOLE
    message = msgspec.json.decode(await read_all(await plain))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "hello there", "refusal": None}

    plain, streaming = await start(cache, make_call("two"), make_call("two", stream=True))
    upstream.exchanges[1].answer(chat_answer())
    assert await read_all(await plain) == chat_answer()
    assert streamed_text(await read_all(await streaming)) == "hello there"
    assert len(upstream.exchanges) == 2


async def test_wait_mode_gives_followers_the_whole_answer_only(clock: FakeClock) -> None:
    """The leader reads live, the others when all is there."""
    upstream = Upstream()
    cache = make_cache(upstream, clock, exact={"coalesce": "wait"})
    leading, following = await start(cache, make_call(stream=True), make_call(stream=True))
    exchange = upstream.exchanges[0]
    exchange.begin()
    exchange.feed(*EVENTS[:-1])
    leader = await leading
    assert await read_some(leader)
    await settle()
    assert not following.done()
    exchange.feed(EVENTS[-1])
    exchange.end()

    assert streamed_text(await read_all(await following)) == "hello there"
    assert await read_all(leader) == EVENTS[-1]
    assert len(upstream.exchanges) == 1


async def test_off_mode_shares_nothing(clock: FakeClock) -> None:
    """Each call asks for itself."""
    upstream = Upstream()
    cache = make_cache(upstream, clock, exact={"coalesce": "off"})
    asking = await start(cache, make_call(), make_call())
    for exchange in upstream.exchanges:
        exchange.answer(chat_answer())

    assert [await read_all(await task) for task in asking] == [chat_answer()] * 2
    assert len(upstream.exchanges) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_aclose_ends_every_flight(clock: FakeClock, stream: bool) -> None:
    """Calls in flight are told so, their upstream calls are closed, and no new one starts."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    asking = await start(cache, make_call(stream=stream), make_call(stream=stream))
    if stream:
        upstream.exchanges[0].begin()
        await settle()
    await cache.aclose()
    results = await asyncio.gather(*(_read(task) for task in asking), return_exceptions=True)

    assert [type(result) for result in results] == [Draining, Draining]
    assert upstream.exchanges[0].is_closed
    assert len(upstream.exchanges) == 1


async def _read(asking: asyncio.Task[Reply]) -> bytes:
    return await read_all(await asking)


async def test_tenants_never_join_each_other(clock: FakeClock) -> None:
    """What is not shared in the store is not shared in flight."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    asking = await start(cache, *(make_call(tenant=tenant, stream=True) for tenant in "abc"))

    assert [exchange.call.tenant for exchange in upstream.exchanges] == ["a", "b", "c"]
    for task in asking:
        task.cancel()
    await settle()


async def test_refresh_neither_joins_nor_is_joined(clock: FakeClock) -> None:
    """Who asks for a fresh answer gets one of its own."""
    upstream = Upstream()
    cache = make_cache(upstream, clock)
    asking = await start(cache, make_call(), make_call(cache_control="no-cache"), make_call())
    assert len(upstream.exchanges) == 2
    for number, exchange in enumerate(upstream.exchanges):
        exchange.answer(chat_answer(f"answer {number}"))

    bodies = [await read_all(await task) for task in asking]
    assert bodies == [chat_answer(f"answer {number}") for number in (0, 1, 0)]


class SlowStore(MemoryEntryStore):
    """A store that answers when the test says so, and counts how often it is asked."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(10**6, clock)
        self.num_asked = 0
        self.may_answer = asyncio.Event()

    def get_nowait(self, key: bytes) -> None:
        """Nothing is at hand."""
        return

    async def get(self, key: bytes) -> Entry | None:
        """The answer, when it may be given."""
        self.num_asked += 1
        await self.may_answer.wait()
        return super().get_nowait(key)


@pytest.mark.parametrize("stream", [False, True])
async def test_identical_calls_share_the_look_up_too(clock: FakeClock, stream: bool) -> None:
    """A store outside this process is asked once; everybody has a hit, but who wants a fresher answer."""
    upstream = Upstream()
    store = SlowStore(clock)
    store.may_answer.set()
    cache = make_cache(upstream, clock, store)
    (leading,) = await start(cache, make_call())
    upstream.exchanges[0].answer(chat_answer())
    await read_all(await leading)
    await clock.advance(30.0)
    store.may_answer.clear()
    store.num_asked = 0
    calls = [make_call(stream=stream) for _ in range(50)]
    fussy = make_call(stream=stream, cache_control="max-age=20")
    asking = await start(cache, *calls, fussy)
    store.may_answer.set()
    replies = [await task for task in asking[:-1]]
    await settle()
    upstream.exchanges[1].answer(chat_answer())
    await read_all(await asking[-1])

    assert store.num_asked == 1
    assert {reply.header(b"age") for reply in replies} == {b"30"}
    assert {call.facts.cache for call in calls} == {CacheOutcome.HIT}
    assert len({await read_all(reply) for reply in replies}) == 1
    assert fussy.facts.cache is CacheOutcome.MISS

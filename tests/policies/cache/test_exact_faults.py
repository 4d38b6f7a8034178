"""Streams cut at random points, clients leaving at random points: never stored, never clean, nobody left waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import SlipstreamError, StreamStalled, TotalTimeout, UpstreamCut
from backends.protocol import Call, Reply
from backends.stream import StreamEnd
from policies.cache.exact import ExactCache
from policies.cache.store_memory import MemoryEntryStore
from tests.support.calls import make_call, read_all, streamed_text
from tests.support.clock import FakeClock, settle
from tests.support.policy.cache import Exchange, Upstream, chat_answer, chat_events, make_cache

WHOLE = b"".join(chat_events())
ERRORS = [UpstreamCut("cut"), StreamStalled("stalled"), TotalTimeout("late")]


async def read_to_the_end(reply: Reply) -> tuple[bytes, StreamEnd | None]:
    """What a client gets of a stream, and how it ended."""
    assert reply.stream is not None
    received = b""
    try:
        while piece := await reply.stream.read():
            received += piece
    except SlipstreamError:
        assert reply.stream.end is not StreamEnd.CLEAN
    await reply.aclose()
    return received, reply.stream.end


@pytest.mark.parametrize("coalesce", ["off", "wait", "join_stream"])
@given(cut=st.integers(0, len(WHOLE)), piece=st.integers(1, 400), error=st.sampled_from(ERRORS))
def test_cut_stream_is_never_stored_and_never_clean(
    coalesce: str, cut: int, piece: int, error: SlipstreamError
) -> None:
    """Wherever it is cut: the client sees the cut, and the next call asks again."""

    async def scenario() -> None:
        clock = FakeClock()
        store = MemoryEntryStore(10**6, clock)

        def respond(exchange: Exchange) -> None:
            exchange.begin()
            exchange.feed(*(WHOLE[at : min(at + piece, cut)] for at in range(0, cut, piece)))
            exchange.fail(error)

        upstream = Upstream(respond)
        cache = make_cache(upstream, clock, store, exact={"coalesce": coalesce})
        received, end = await read_to_the_end(await cache.send(make_call(stream=True)))

        assert received == WHOLE[:cut]
        assert end == error.stream_end
        assert store.statistics().entries == 0

    asyncio.run(scenario())


@given(seed=st.integers(0, 2**32))
def test_random_crowd_is_served_or_told(seed: int) -> None:
    """Calls come and go at random while upstreams answer, fail and break off: every answer is whole, or an error."""

    async def scenario() -> None:
        random = Random(seed)
        upstream = Upstream()
        cache = make_cache(upstream, FakeClock())
        driving = asyncio.ensure_future(drive(upstream, random))
        clients = []
        for _ in range(12):
            clients.append(asyncio.ensure_future(ask(cache, make_call(stream=random.random() < 0.7))))
            await settle(random.randrange(4))
            if random.random() < 0.3:
                random.choice(clients).cancel()
        async with asyncio.timeout(5.0):
            results = await asyncio.gather(*clients, return_exceptions=True)
        await settle()
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)

        assert {type(result) for result in results} <= {bool, UpstreamCut, asyncio.CancelledError}
        assert False not in results
        assert all(exchange.is_closed or exchange.is_over for exchange in upstream.exchanges)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


async def ask(cache: ExactCache, call: Call) -> bool:
    """Whether the answer is a whole one."""
    body = await read_all(await cache.send(call))
    if call.stream:
        return streamed_text(body) == "hello there" and body.endswith(b"data: [DONE]\n\n")
    return bool(msgspec.json.decode(body)["choices"][0]["message"]["content"] == "hello there")


async def drive(upstream: Upstream, random: Random) -> None:
    """Give each call that comes what chance will have it get, a step at a time."""
    playing: list[Iterator[None]] = []
    num_seen = 0
    while True:
        playing += [play(exchange, random) for exchange in upstream.exchanges[num_seen:]]
        num_seen = len(upstream.exchanges)
        for one in list(playing):
            if random.random() < 0.5 and next(one, ...) is ...:
                playing.remove(one)
        await asyncio.sleep(0)


def play(exchange: Exchange, random: Random) -> Iterator[None]:
    """One exchange, in steps."""
    yield
    if exchange.is_closed:
        return
    if random.random() < 0.3:
        exchange.fail(UpstreamCut("gone"))
        return
    if not exchange.call.stream:
        exchange.answer(chat_answer())
        return
    exchange.begin()
    for event in chat_events():
        yield
        if random.random() < 0.07:
            exchange.fail(UpstreamCut("cut"))
            return
        exchange.feed(event)
    exchange.end()

"""Shared streams larger than what may be kept: memory stays bounded, fast readers are not held up by slow ones."""

from __future__ import annotations

import asyncio

import pytest

from backends.errors import ClientGone
from backends.protocol import CacheOutcome, Reply
from tests.support.calls import make_call, read_all
from tests.support.clock import FakeClock, settle
from tests.support.policy.cache import Upstream, make_cache, start

KIB = 1024
MAX_ENTRY = 300 * KIB
PIECE = b"x" * (16 * KIB)
WINDOW_PIECES = 16


async def read_pieces(reply: Reply, num_bytes: int) -> int:
    """Read at least so many bytes, at most what is there."""
    assert reply.stream is not None
    num_read = 0
    while num_read < num_bytes:
        num_read += len(await reply.stream.read())
    return num_read


async def begin(clock: FakeClock, num_followers: int) -> tuple[Upstream, list[Reply], list[asyncio.Task[Reply]]]:
    """A flight whose first piece has come, with its readers; the tasks are to be left alone."""
    upstream = Upstream()
    cache = make_cache(upstream, clock, exact={"max_entry": f"{MAX_ENTRY // KIB}KiB"})
    asking = await start(cache, *(make_call(stream=True) for _ in range(1 + num_followers)))
    upstream.exchanges[0].begin()
    upstream.exchanges[0].feed(PIECE)
    await settle()
    return upstream, [await task for task in asking], asking


async def test_upstream_waits_for_the_only_reader(clock: FakeClock) -> None:
    """A client that does not read makes the upstream wait, after what may be kept anyway."""
    upstream, (reader,), _ = await begin(clock, 0)
    exchange = upstream.exchanges[0]
    exchange.feed(*[PIECE] * 99)
    exchange.end()
    await settle(300)

    assert exchange.num_read == MAX_ENTRY // len(PIECE) + 1
    await read_pieces(reader, MAX_ENTRY)
    await settle(300)
    assert exchange.num_read <= MAX_ENTRY // len(PIECE) + 2 + WINDOW_PIECES + 1
    assert len(await read_all(reader)) == 100 * len(PIECE) - (MAX_ENTRY // len(PIECE) + 1) * len(PIECE)


async def test_large_answer_is_not_kept_and_cannot_be_joined_late(clock: FakeClock) -> None:
    """Beyond the bound a new call asks for itself, and so does the next one afterwards."""
    upstream = Upstream()
    cache = make_cache(upstream, clock, exact={"max_entry": f"{MAX_ENTRY // KIB}KiB"})
    leading, plain = await start(cache, make_call(stream=True), make_call())
    first = upstream.exchanges[0]
    first.begin()
    first.feed(*[PIECE] * 20)
    leader = await leading
    await read_pieces(leader, 19 * len(PIECE))
    late = make_call(stream=True)
    (joining,) = await start(cache, late)

    assert len(upstream.exchanges) == 3
    assert not plain.done()
    assert late.facts.cache is CacheOutcome.MISS
    first.end()
    await read_all(leader)
    for task in (plain, joining):
        task.cancel()
    await settle()
    assert all(exchange.is_closed for exchange in upstream.exchanges)


async def test_reader_that_stalls_is_dropped_and_does_not_hold_up_the_others(clock: FakeClock) -> None:
    """Beyond the bound the fast ones set the pace; who is too far behind gets a typed error."""
    upstream, (fast, slow, stalled), _ = await begin(clock, 2)
    exchange = upstream.exchanges[0]
    num_slow = num_fast = 0
    for _ in range(60):
        exchange.feed(PIECE)
        num_fast += await read_pieces(fast, 1)
        await settle()
        if num_fast - num_slow > MAX_ENTRY // 2:
            num_slow += await read_pieces(slow, 1)
    exchange.end()

    assert num_fast + len(await read_all(fast)) == 61 * len(PIECE)
    assert num_slow + len(await read_all(slow)) == 61 * len(PIECE)
    with pytest.raises(ClientGone, match="too slowly"):
        await read_all(stalled)


async def test_memory_of_a_long_stream_is_bounded(clock: FakeClock) -> None:
    """What everybody has read is forgotten once it cannot be kept."""
    upstream, (fast, slow), _ = await begin(clock, 1)
    exchange = upstream.exchanges[0]
    assert fast.stream is not None
    flight = fast.stream._source._flight  # type: ignore[attr-defined]
    most = 0
    for _ in range(200):
        exchange.feed(PIECE)
        await read_pieces(fast, 1)
        await settle()
        most = max(most, sum(map(len, flight._pieces)))

    assert most <= MAX_ENTRY + 2 * len(PIECE)
    await fast.aclose()
    await slow.aclose()
    await settle()
    assert exchange.is_closed


async def test_dropped_reader_alone_does_not_keep_the_upstream_running(clock: FakeClock) -> None:
    """When those who read have left, nobody is left."""
    upstream, (fast, stalled), _ = await begin(clock, 1)
    exchange = upstream.exchanges[0]
    for _ in range(40):
        exchange.feed(PIECE)
        await read_pieces(fast, 1)
        await settle()
    assert not exchange.is_closed
    await fast.aclose()
    await settle()

    assert exchange.is_closed
    await stalled.aclose()

"""A feed on a real publisher: what was missed is asked for, and what cannot be had again is doubted."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backends.clock import SystemClock
from backends.kv_events import KvEventsConfig
from policies.pool.load.demand import hash_blocks
from policies.pool.prompts.engine_text import EngineText
from policies.pool.prompts.kv_feed import KvFeed
from policies.pool.prompts.kv_mirror import Happening
from policies.pool.prompts.prefix_index import PrefixIndex
from tests.support.clock import FakeClock
from tests.support.engine.engine_words import Words, call_for, words
from tests.support.engine.kv_engine import PagedCache, Publisher, encode_batch, encode_event
from tests.support.policy.places import depths


class Followed:
    """An engine whose cache is followed, and what is known of it."""

    def __init__(self, publisher: Publisher, feed: KvFeed, index: PrefixIndex) -> None:
        self.publisher = publisher
        self.feed = feed
        self.index = index
        self.cache = PagedCache(100, page_size=8)
        self.counts: Counter[Happening] = Counter()

    async def serve(self, *prompts: str) -> None:
        """Compute prompts and tell of it, in a batch each."""
        for prompt in prompts:
            self.cache.serve(words(prompt))
            await self.publisher.publish(*self.cache.take_events())

    def lose(self, prompt: str) -> None:
        """Compute one, and tell of it to nobody."""
        self.cache.serve(words(prompt))
        self.publisher.lose(*self.cache.take_events())

    def depth(self, prompt: str) -> int:
        """How many blocks of a prompt the engine is thought to hold."""
        written = self.feed.text.read(call_for(prompt))
        assert written is not None
        return depths(self.index, hash_blocks(*written)).get(self.feed.slots[0], 0)

    def count(self, kind: Happening) -> int:
        """How often that has happened so far."""
        self.counts += self.feed.take_counts()
        return self.counts[kind]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(5):
        while not is_so():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def listening(config: KvEventsConfig) -> AsyncIterator[tuple[KvFeed, PrefixIndex]]:
    """A feed, and the index that it fills."""
    text = EngineText(config, lambda folder: Words())
    await text.open()
    index = PrefixIndex()
    feed = KvFeed("gpu", config, [index.add(100_000)], text, index=index, clock=SystemClock())
    await feed.open()
    try:
        yield feed, index
    finally:
        await feed.aclose()


@asynccontextmanager
async def followed(*, replay: bool = True, **publisher: Any) -> AsyncIterator[Followed]:
    """A publisher, and a feed that listens to it."""
    async with Publisher(**publisher) as engine:
        asked = engine.replay if replay else None
        config = KvEventsConfig(endpoint=engine.endpoint, replay=asked, topic="kv", tokenizer="here", scope="global")
        async with listening(config) as (feed, index):
            await engine.wait_subscribed()
            await until(lambda: feed.is_live and bool(engine.asked) is replay)
            yield Followed(engine, feed, index)


A, B, C = "a" * 16, "b" * 16, "c" * 16


async def test_feed_takes_in_what_the_engine_tells() -> None:
    """Stored, removed, cleared: the index follows."""
    async with followed() as engine:
        await engine.serve(A, B)
        await until(lambda: engine.depth(B) > 0)
        held = engine.depth(A), engine.depth(B), engine.feed.num_blocks
        engine.cache.clear()
        await engine.publisher.publish(*engine.cache.take_events())
        await until(lambda: engine.depth(B) == 0)

        assert held == (2, 2, 4)
        assert engine.depth(A) == engine.feed.num_blocks == 0
        assert {kind: engine.count(kind) for kind in ("batch", "stored", "cleared")} == {
            "batch": 3,
            "stored": 4,
            "cleared": 1,
        }


@pytest.mark.parametrize("tells_topic", [True, False], ids=["with the topic", "as older engines"])
async def test_feed_asks_at_the_start_for_what_was_told_before(tells_topic: bool) -> None:
    """A gateway that comes late knows what the engine holds all the same."""
    async with Publisher(tells_topic=tells_topic) as publisher:
        cache = PagedCache(100, page_size=8)
        cache.serve(words(A))
        publisher.lose(*cache.take_events())
        config = KvEventsConfig(endpoint=publisher.endpoint, replay=publisher.replay, tokenizer="here", scope="global")
        async with listening(config) as (feed, _):
            await until(lambda: feed.num_blocks == 2)

        assert publisher.asked == [0]
        assert feed.num_blocks == 0


async def test_feed_fills_a_gap_from_the_replay() -> None:
    """What got lost on the way comes in its place, before what came after it."""
    async with followed() as engine:
        await engine.serve(A)
        await until(lambda: engine.depth(A) > 0)
        engine.lose(B)
        engine.lose(B + "d" * 16)
        await engine.serve(C)
        await until(lambda: engine.depth(C) > 0)

        assert engine.publisher.asked == [0, 1]
        assert engine.depth(A) == engine.depth(B) == 2
        assert engine.depth(B + "d" * 16) == 3
        assert (engine.count("gap_filled"), engine.count("gap_lost")) == (1, 0)


async def test_feed_asks_again_with_the_first_message_where_the_start_brought_nothing() -> None:
    """An engine may be too busy, or its messages lost before the first one comes through."""
    async with followed() as engine:
        engine.lose(A)
        await engine.serve(B)
        await until(lambda: engine.depth(B) > 0)

        assert engine.publisher.asked == [0, 0]
        assert engine.depth(A) == 2


@pytest.mark.parametrize("options", [{"replay": False}, {"keeps": 1}], ids=["no replay", "kept too short"])
async def test_feed_doubts_what_it_knew_where_a_gap_stays(options: dict[str, Any]) -> None:
    """It becomes a guess, which what is told later can still take back; all that comes after is known again."""
    async with followed(**options) as engine:
        await engine.serve(A)
        await until(lambda: engine.depth(A) > 0)
        engine.lose(B)
        engine.lose(B + "d" * 16)
        await engine.serve(C)
        await until(lambda: engine.depth(C) > 0)

        assert (engine.count("gap_filled"), engine.count("gap_lost")) == (0, 1)
        assert engine.feed.num_blocks == 2
        assert (engine.depth(A), engine.depth(B)) == (2, 0)


@pytest.mark.parametrize("replay", [True, False])
async def test_feed_starts_anew_with_an_engine_that_does(replay: bool) -> None:
    """While it is away what it held is a guess; the engine that comes back holds nothing of that."""
    async with followed(replay=replay) as engine:
        await engine.serve(A)
        await until(lambda: engine.depth(A) > 0)
        await engine.publisher.stop()
        await until(lambda: not engine.feed.is_live)
        while_away = engine.depth(A), engine.feed.num_blocks
        await engine.publisher.start()
        await engine.publisher.restart()
        await engine.publisher.wait_subscribed()
        await until(lambda: engine.feed.is_live)
        engine.cache.clear()
        engine.cache.take_events()
        await engine.serve(B)
        await until(lambda: engine.depth(B) > 0)

        assert while_away == (2, 0)
        assert (engine.depth(A), engine.depth(B)) == (0, 2)


async def test_feed_notices_an_engine_that_counts_anew_behind_the_same_connection() -> None:
    """As behind a proxy: a number that has been is another engine's."""
    async with followed(replay=False) as engine:
        await engine.serve(A, B)
        await until(lambda: engine.depth(B) > 0)
        engine.publisher._next = 0
        engine.cache.clear()
        engine.cache.take_events()
        await engine.serve(C)
        await until(lambda: engine.depth(C) > 0)

        assert (engine.depth(A), engine.depth(B), engine.feed.num_blocks) == (0, 0, 2)


async def test_feed_doubts_and_goes_on_after_nonsense() -> None:
    """What cannot be read may have been a removal. It is counted, and the next batch is taken as ever."""
    async with followed() as engine:
        await engine.serve(A)
        await until(lambda: engine.depth(A) > 0)
        await engine.publisher.publish_raw(b"\xc1 no msgpack")
        await engine.publisher.publish(encode_event("BlockStored", {"block_hashes": "none"}))
        await engine.publisher._pub.send_multipart([b"kv", b"short", encode_batch()])
        await engine.publisher._pub.send_multipart([b"kv"])
        await engine.serve(B)
        await until(lambda: engine.depth(B) > 0)

        assert engine.count("nonsense") == 4
        assert (engine.depth(A), engine.feed.num_blocks) == (2, 2)


async def test_feed_of_an_engine_that_is_not_there_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """After a while, with the address, and not again and again; an engine that is silent looks just the same."""
    config = KvEventsConfig(endpoint="tcp://127.0.0.1:9", tokenizer="here")
    index, clock = PrefixIndex(), FakeClock()
    feed = KvFeed(
        "gpu", config, [index.add(1000)], EngineText(config, lambda folder: Words()), index=index, clock=clock
    )
    await feed.open()
    await clock.advance(5.0)
    early = list(caplog.messages)
    await clock.advance(120.0)
    await feed.aclose()

    assert early == []
    assert caplog.messages == [
        "the KV events of backend gpu: nobody is at tcp://127.0.0.1:9; what it holds is guessed until somebody is"
    ]


async def test_feed_of_an_engine_that_is_not_there_costs_nothing_and_closes() -> None:
    """Nobody waits for it, and nothing of it is left."""
    config = KvEventsConfig(endpoint="tcp://127.0.0.1:9", replay="tcp://127.0.0.1:9", tokenizer="here")
    index = PrefixIndex()
    text = EngineText(config, lambda folder: Words())
    feed = KvFeed("gpu", config, [index.add(1000)], text, index=index, clock=SystemClock())
    await feed.open()
    await asyncio.sleep(0.05)

    await feed.aclose()
    await feed.aclose()

    assert not feed.is_live
    gc.collect()

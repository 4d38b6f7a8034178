"""Stored answers that come as late as they came at first, and cannot be told from new ones by what they say."""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from backends.errors import ConnectFailed
from backends.operations import Operation
from backends.protocol import CacheOutcome, Call, Reply
from policies.cache.exact import ExactCache
from policies.cache.pacing import Pacing, as_new
from policies.cache.settings import CachePolicy
from policies.cache.store_memory import MemoryEntryStore
from tests.support.calls import make_call, read_all, streamed_text
from tests.support.clock import FakeClock, settle
from tests.support.policy.cache import SSE, Exchange, Upstream, chat_answer, chat_events, event

HEADERS = [(b"content-type", b"application/json"), (b"x-ratelimit-limit", b"5"), (b"x-upstream-request-id", b"9")]
WORDS = ("one ", "two ", "three")
GAP_S = 0.25


class Route:
    """A route with an exact cache that hides its hits."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.upstream = Upstream()
        policy = CachePolicy.model_validate({"pacing": "recorded", "scope": "global"})
        store = MemoryEntryStore(64 * 1024**2, self.clock)
        cache = ExactCache(self.upstream, policy, store, self.clock, "route")
        self.stage = Pacing(cache, self.clock, Random(1))

    async def begin(self, call: Call) -> tuple[asyncio.Task[Reply], Exchange]:
        """Send a call that reaches the upstream."""
        task = asyncio.ensure_future(self.stage.send(call))
        await settle()
        return task, self.upstream.exchanges[-1]

    async def ask_whole(self, call: Call) -> Reply:
        """A miss whose answer comes after two seconds."""
        task, exchange = await self.begin(call)
        await self.clock.advance(2.0)
        exchange.answer(chat_answer(), headers=[*HEADERS])
        return await task

    async def ask_stream(self, call: Call) -> list[tuple[float, bytes]]:
        """A miss whose head comes after a second, and then each event after a quarter."""
        start = self.clock.now()
        task, exchange = await self.begin(call)
        await self.clock.advance(1.0)
        exchange.begin(headers=[*SSE, *HEADERS[1:]])
        reply = await task
        pieces = []
        for each in chat_events(*WORDS):
            await self.clock.advance(GAP_S)
            exchange.feed(each)
            pieces.append((self.clock.now() - start, await _read(reply)))
        exchange.end()
        assert await _read(reply) == b""
        return pieces


async def _read(reply: Reply) -> bytes:
    assert reply.stream is not None
    return await reply.stream.read()


def call(stream: bool = False, **fields: Any) -> Call:
    """A call of somebody; its deadline is far away on the test's clock."""
    return make_call(stream=stream, deadline=2000.0, **fields)


async def test_hit_comes_when_its_original_came() -> None:
    """Not a moment earlier; and its headers are those of the miss."""
    route = Route()
    missed = await route.ask_whole(call())
    again = call()
    task = asyncio.ensure_future(route.stage.send(again))
    await route.clock.advance(1.99)
    assert not task.done()
    await route.clock.advance(0.02)
    hit = await task

    assert again.facts.cache is CacheOutcome.HIT
    assert len(route.upstream.exchanges) == 1
    assert missed.headers == hit.headers == [(b"content-type", b"application/json")]


async def test_streamed_hit_comes_event_by_event_as_its_original_came() -> None:
    """The head after a second, each event at its own moment, the last ones together with the end."""
    route = Route()
    pieces = await route.ask_stream(call(stream=True))
    start = route.clock.now()
    task = asyncio.ensure_future(route.stage.send(call(stream=True)))
    await route.clock.advance(0.99)
    assert not task.done()
    await route.clock.advance(0.02)
    hit = await task
    replayed = []
    while True:
        reading = asyncio.ensure_future(_read(hit))
        while not reading.done():
            await route.clock.advance(0.01)
        if not reading.result():
            break
        replayed.append((route.clock.now() - start, reading.result()))

    # The usage was not asked for, so that event is not among them.
    expected = [moment for moment, piece in pieces if b'"choices":[]' not in piece]
    assert len(replayed) == len(expected)
    for (moment, _), due in zip(replayed[:-1], expected, strict=False):
        assert due - 0.001 <= moment <= due + 0.02
    assert streamed_text(b"".join(piece for _, piece in replayed)) == "".join(WORDS)
    assert hit.headers == [(b"content-type", SSE[0][1])]


async def test_last_event_of_a_response_comes_when_it_came_at_first() -> None:
    """It has the usage in it, and everything else of the response too."""
    route = Route()
    unkept = {"store": False}
    asked: dict[str, Any] = {"operation": Operation.RESPONSES, "stream": True, "deadline": 2000.0, "extra": unkept}
    task, exchange = await route.begin(make_call(**asked))
    exchange.begin(headers=[*SSE])
    reply = await task
    for kind in ("created", "completed"):
        await route.clock.advance(GAP_S)
        exchange.feed(event({"type": f"response.{kind}", "response": {"usage": {"input_tokens": 1}}}))
        await _read(reply)
    exchange.end()
    assert await _read(reply) == b""
    hit = await route.stage.send(make_call(**asked))
    reading = asyncio.ensure_future(read_all(hit))
    await route.clock.advance(2 * GAP_S - 0.01)

    assert not reading.done()
    await route.clock.advance(0.02)
    assert b"response.completed" in await reading


@pytest.mark.parametrize(
    "asked",
    [{"operation": Operation.RESPONSES}, {"extra": {"store": True}}],
    ids=["response", "chat"],
)
async def test_answer_that_its_upstream_keeps_is_asked_for_anew(asked: dict[str, Any]) -> None:
    """It can be built on by its id, which would be another one here than there."""
    route = Route()
    body = msgspec.json.encode({**msgspec.json.decode(chat_answer()), "status": "completed"})
    for _ in range(2):
        task, exchange = await route.begin(call(**asked))
        exchange.answer(body)
        assert (await task).body == body

    assert len(route.upstream.exchanges) == 2


async def test_hit_is_dated_now_and_has_another_id() -> None:
    """A time before the question would give it away; the words stay what they were."""
    route = Route()
    missed = await route.ask_whole(call())
    await route.clock.advance(500.0)
    task = asyncio.ensure_future(route.stage.send(call()))
    await route.clock.advance(3.0)
    hit = await task

    old, new = (msgspec.json.decode(reply.body or b"") for reply in (missed, hit))
    assert new.pop("created") == int(route.clock.wall() - 3.0)
    assert old.pop("created") == 1_700_000_000
    assert re.fullmatch(r"chatcmpl-\w+", new.pop("id"))
    assert old.pop("id") == "chatcmpl-1"
    assert new == old


def test_id_is_another_one_of_the_same_make() -> None:
    """In every event of a stream, and nowhere in what is said."""
    old = b"chatcmpl-B9xK2mQ7pLz4"
    body = b'data: {"id":"%b","a":"say \\"%b\\""}\n\ndata: {"id": "%b"}\n\n' % (old, old, old)
    renewed = as_new(body, 5.0, Random(1))
    ids = re.findall(rb'"id": ?"([^"]*)"', renewed)

    assert len(set(ids)) == 1
    assert ids[0] != old
    assert sorted(ids[0]) == sorted(old)
    assert ids[0].startswith(b"chatcmpl-")
    assert b'say \\"%b\\"' % old in renewed


async def test_other_form_is_a_miss() -> None:
    """What was recorded whole has no moments for its events, and the other way round."""
    route = Route()
    await route.ask_whole(call())
    streamed = call(stream=True)
    await route.ask_stream(streamed)
    task, exchange = await route.begin(call())
    exchange.answer(chat_answer())
    await task

    assert streamed.facts.cache is CacheOutcome.MISS
    assert len(route.upstream.exchanges) == 3


async def test_calls_in_flight_are_not_shared() -> None:
    """Who joined would be answered sooner than a miss."""
    route = Route()
    tasks = [(await route.begin(call()))[0] for _ in range(2)]
    for exchange in route.upstream.exchanges:
        exchange.answer(chat_answer())
    await asyncio.gather(*tasks)

    assert len(route.upstream.exchanges) == 2


async def test_hit_waits_no_longer_than_its_call() -> None:
    """A call with less time than its answer took gets it at its end."""
    route = Route()
    await route.ask_whole(call())
    task = asyncio.ensure_future(route.stage.send(make_call(deadline=route.clock.now() + 0.5)))
    await route.clock.advance(0.51)

    assert task.done()


async def test_error_keeps_its_headers_and_the_call_its_speed() -> None:
    """A fallback that hides nothing is asked as if nothing had been hidden."""
    route = Route()
    asked = call()
    task, exchange = await route.begin(asked)
    exchange.answer(b"{}", status=429, headers=[*HEADERS])
    refused = await task
    lost = call()
    task, exchange = await route.begin(lost)
    exchange.fail(ConnectFailed("nobody there"))
    with pytest.raises(ConnectFailed):
        await task

    assert (b"x-ratelimit-limit", b"5") in refused.headers
    assert asked.facts.stopwatch is lost.facts.stopwatch is None


async def test_left_while_it_is_held_back_ends_at_once() -> None:
    """A client that goes costs nothing more."""
    route = Route()
    await route.ask_whole(call())
    task = asyncio.ensure_future(route.stage.send(call()))
    await settle()
    task.cancel()
    await settle()

    assert task.cancelled()


def test_policy_has_one_pace() -> None:
    """Two that contradict each other are refused."""
    with pytest.raises(ValidationError, match=r"pacing or semantic\.replay_tps"):
        CachePolicy.model_validate({"pacing": "recorded", "semantic": {"replay_tps": 60}})

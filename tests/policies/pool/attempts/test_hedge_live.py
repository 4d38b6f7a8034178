"""Hedging over real connections: a stalled upstream, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backends.clock import SystemClock
from backends.http.openai import KIND, OpenAIBackend
from backends.http.openai_settings import OpenAIConfig
from backends.operations import Operation
from backends.protocol import Reply
from tests.support.calls import make_call, read_all, streamed_text
from tests.support.policy.hedged import Hedged
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

_CLOCK = SystemClock()


class Upstreams:
    """Two servers, the backends before them, and a pool that hedges between these."""

    def __init__(self, one: OpenAIServer, two: OpenAIServer) -> None:
        self.one = one
        self.two = two
        self.leaves: list[OpenAIBackend] = []
        for name, server in (("one", one), ("two", two)):
            leaf = KIND.build(name, OpenAIConfig(base_url=server.base_url), _CLOCK)
            assert isinstance(leaf, OpenAIBackend)
            self.leaves.append(leaf)
        self.hedged = Hedged(self.leaves, _CLOCK)
        self.hedged.teach()

    async def settled(self) -> tuple[int, int, list[str]]:
        """What is left when a call is over: attempts at leaves and replicas, breakers that are not as before."""
        await asyncio.sleep(0)
        in_flight = sum(leaf.statistics().in_flight for leaf in self.leaves)
        failures = [
            leaf.name
            for leaf in self.leaves
            for breaker in self.hedged.pool.breakers_of(leaf)
            if breaker.snapshot().consecutive_failures or not breaker.is_closed
        ]
        return in_flight, self.hedged.num_in_flight(), failures


@pytest.fixture
async def upstreams() -> AsyncIterator[Upstreams]:
    """Both say who they are."""
    async with OpenAIServer(Behaviour(text="I am one")) as one, OpenAIServer(Behaviour(text="I am two")) as two:
        both = Upstreams(one, two)
        for leaf in both.leaves:
            await leaf.open()
        yield both
        for leaf in both.leaves:
            await leaf.aclose()


@pytest.mark.parametrize(
    "stall", [Behaviour(stall_before_head=True), Behaviour(stall_after_events=1)], ids=["head", "role"]
)
@pytest.mark.timed
async def test_hedge_live_stalled_stream_is_answered_by_the_other(upstreams: Upstreams, stall: Behaviour) -> None:
    """Silent before its head or after its role: the second answers whole, and the first's connection is closed."""
    upstreams.one.next(stall)
    call = make_call(stream=True)
    reply = await upstreams.hedged.pool.send(call)
    left_s = await upstreams.one.wait_disconnected(0) - upstreams.one.requests[0].at
    said = await read_all(reply)

    assert streamed_text(said) == "I am two"
    assert said.endswith(b"data: [DONE]\n\n")
    assert left_s < 1.0
    assert (call.facts.backend, call.facts.attempts) == ("two", 2)
    assert call.facts.usage is not None
    assert call.facts.usage.completion_tokens == 3
    assert await upstreams.settled() == (0, 0, [])
    statistics = upstreams.hedged.hedging.statistics()
    assert (statistics.sent, statistics.won, statistics.wasted_tokens > 0) == (1, 1, True)


async def test_hedge_live_whole_answer_that_stalls_is_answered_by_the_other(upstreams: Upstreams) -> None:
    """The same where nothing is streamed; who traces the call learns of both attempts."""
    upstreams.one.next(Behaviour(stall_before_head=True))
    call = make_call()
    call.facts.passed_stages = []
    reply = await upstreams.hedged.pool.send(call)
    await upstreams.one.wait_disconnected(0)

    assert b"I am two" in await read_all(reply)
    tried = {passed.details["backend"]: passed for passed in call.facts.passed_stages}
    assert {name: passed.details["error"] for name, passed in tried.items()} == {"one": "CancelledError", "two": ""}
    assert tried["one"].began_at < tried["two"].began_at < tried["two"].ended_at <= tried["one"].ended_at
    assert (call.facts.backend, call.facts.attempts) == ("two", 2)
    assert await upstreams.settled() == (0, 0, [])


async def test_hedge_live_first_content_beats_a_head_that_came_earlier(upstreams: Upstreams) -> None:
    """The second only says its role and stalls; the first, though late, is the answer, and the second is closed."""
    upstreams.one.next(Behaviour(text="late but whole", delay_s=0.25))
    upstreams.two.next(Behaviour(stall_after_events=1))
    call = make_call(stream=True)
    reply = await upstreams.hedged.pool.send(call)
    await upstreams.two.wait_disconnected(0)

    assert streamed_text(await read_all(reply)) == "late but whole"
    assert (call.facts.backend, call.facts.attempts) == ("one", 2)
    assert await upstreams.settled() == (0, 0, [])
    assert upstreams.hedged.hedging.statistics().won == 0


async def test_hedge_live_error_is_not_crowned(upstreams: Upstreams) -> None:
    """The second fails at once; the first still answers, and the second's breaker knows."""
    upstreams.one.next(Behaviour(delay_s=0.25, text="I am one"))
    upstreams.two.next(error(500))
    reply = await upstreams.hedged.pool.send(make_call(stream=True))

    assert streamed_text(await read_all(reply)) == "I am one"
    assert await upstreams.settled() == (0, 0, ["two"])


async def test_hedge_live_first_that_fails_late_leaves_it_to_the_second(upstreams: Upstreams) -> None:
    """An error after the second was asked does not end the call."""
    upstreams.one.next(Behaviour(status=500, delay_s=0.2, body=b"{}"))
    upstreams.two.next(Behaviour(delay_s=0.3, text="slow"))
    reply = await upstreams.hedged.pool.send(make_call(stream=True))

    assert streamed_text(await read_all(reply)) == "slow"
    assert await upstreams.settled() == (0, 0, ["one"])


@pytest.mark.parametrize("second", [error(429, retry_after="3600"), error(401), error(504), error(400)])
async def test_hedge_live_second_that_failed_too_is_not_asked_again(upstreams: Upstreams, second: Behaviour) -> None:
    """It has said to come again in an hour, or would fail so again: an attempt after both have failed is not for it."""
    hedged = Hedged(upstreams.leaves, _CLOCK, attempts=2)
    hedged.teach()
    upstreams.one.next(Behaviour(status=500, delay_s=0.3, body=b"{}"))
    upstreams.two.default = second
    reply = await hedged.pool.send(make_call())

    assert reply.status == 500
    assert [len(each.requests) for each in (upstreams.one, upstreams.two)] == [1, 1]


async def test_hedge_live_second_that_is_full_is_asked_again_when_it_says(upstreams: Upstreams) -> None:
    """Both have failed; its pause is waited for, as without a hedge."""
    hedged = Hedged(upstreams.leaves, _CLOCK, attempts=2)
    hedged.teach()
    upstreams.one.next(Behaviour(status=500, delay_s=0.2, body=b"{}"))
    upstreams.two.next(error(429, retry_after="1"))
    reply = await hedged.pool.send(make_call())
    first, again = upstreams.two.requests

    assert b"I am two" in await read_all(reply)
    assert again.at - first.at >= 1.0


async def test_hedge_live_client_that_leaves_cancels_both(upstreams: Upstreams) -> None:
    """Nobody waits any more: both connections are closed, nothing is left, nobody is blamed."""
    upstreams.one.next(Behaviour(stall_before_head=True))
    upstreams.two.next(Behaviour(stall_before_head=True))
    before = asyncio.all_tasks()
    task = asyncio.create_task(upstreams.hedged.pool.send(make_call(stream=True)))
    await upstreams.two.wait_request()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = asyncio.all_tasks() - before - {task}
    await upstreams.one.wait_disconnected(0)
    await upstreams.two.wait_disconnected(0)

    assert [each for each in left if "_start" in repr(each)] == []
    assert await upstreams.settled() == (0, 0, [])


@pytest.mark.parametrize(
    ("operation", "extra"),
    [
        (Operation.RESPONSES, {}),
        (Operation.PASSTHROUGH, {}),
        (Operation.CHAT, {"mcp_servers": [{"url": "https://mail.example/mcp"}]}),
        (Operation.CHAT, {"tools": [{"type": "mcp", "server_url": "https://mail.example/mcp"}]}),
        (Operation.CHAT, {"web_search_options": {}}),
        (Operation.CHAT, {"store": True}),
    ],
)
async def test_hedge_live_what_may_not_be_sent_twice_is_sent_once(
    upstreams: Upstreams, operation: Operation, extra: dict[str, Any]
) -> None:
    """However late it is."""
    upstreams.one.next(Behaviour(delay_s=0.3, body=b'{"choices":[{"message":{"content":"late"}}]}'))
    call = make_call(operation=operation, extra=extra)
    reply = await upstreams.hedged.pool.send(call)
    await reply.aclose()

    assert call.facts.attempts == 1
    assert upstreams.two.requests == []


async def test_hedge_live_unknown_latency_means_no_hedge(upstreams: Upstreams) -> None:
    """Before enough was seen nobody knows what is late."""
    fresh = Hedged(upstreams.leaves, _CLOCK)
    upstreams.one.next(Behaviour(delay_s=0.3))
    reply = await fresh.pool.send(make_call(stream=True))
    await read_all(reply)

    assert upstreams.two.requests == []


async def test_hedge_live_many_calls_are_each_answered_once(upstreams: Upstreams) -> None:
    """Stalls now and then, many calls at once: each gets one whole answer of one upstream, and nothing is left."""
    stalls = [
        Behaviour(text="I am one", stall_before_head=number % 10 == 0, event_delay_s=0.002) for number in range(100)
    ]
    upstreams.one.next(*stalls)
    for _ in range(200):
        upstreams.hedged.hedging.earn()

    async def one() -> str:
        reply: Reply = await upstreams.hedged.pool.send(make_call(stream=True))
        return streamed_text(await read_all(reply))

    answers: list[str] = []
    for _ in range(10):
        answers += await asyncio.gather(*(one() for _ in range(10)))

    assert set(answers) == {"I am one", "I am two"}
    assert answers.count("I am two") >= 10
    assert await upstreams.settled() == (0, 0, [])

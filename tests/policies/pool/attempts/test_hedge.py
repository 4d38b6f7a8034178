"""Hedging: when a call is late, what may be spent, and who answers, whatever two attempts do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.charges.usage import Usage
from backends.clock import Clock
from backends.errors import UpstreamCut, UpstreamError
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Reply, Statistics
from backends.scripted.facts_tap import FactsTap
from backends.sse import encode_event
from backends.stream import Stream, StreamEnd
from gateway.simulate.virtual_loop import VirtualClock, VirtualLoop
from policies.pool.attempts.hedge import HedgeBudget, Lateness
from tests.support.calls import make_call, read_all
from tests.support.clock import FakeClock, settle
from tests.support.policy.hedged import EXPECTED_S, Hedged
from tests.support.policy.pool import Played, error_reply, stream_reply

ROLE = encode_event(b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}')
LATE_S = 2 * EXPECTED_S


def content(name: str) -> bytes:
    """What a leaf of that name says, after its head."""
    return encode_event(b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % name.encode()) + b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Plan:
    """How a leaf answers: its head after `head_s`, its content `content_s` later, which may be a failure instead."""

    head_s: float
    content_s: float = 0.0
    failure: str = ""

    @property
    def end_s(self) -> float:
        """When it is sure how it answers."""
        return self.head_s + (0.0 if self.failure == "status" else self.content_s)


class Timed:
    """A leaf that answers by a plan, and knows what became of its answers."""

    def __init__(self, name: str, plan: Plan, clock: Clock) -> None:
        self.name = name
        self.capabilities = Capabilities(operations=frozenset(Operation))
        self.plan = plan
        self.asked_at: list[float] = []
        self.cancelled = 0
        self.ends: list[StreamEnd] = []
        self._clock = clock

    async def open(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""

    def statistics(self) -> Statistics:
        """Calls taken."""
        return Statistics(sent=len(self.asked_at))

    async def send(self, call: Call) -> Reply:
        """Answer by the plan."""
        self.asked_at.append(self._clock.now())
        try:
            await self._clock.sleep(self.plan.head_s)
            if self.plan.failure == "status":
                return error_reply(500)
            call.facts.first_token_at = self._clock.now()
            if not call.stream:
                await self._clock.sleep(self.plan.content_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if not call.stream:
            if self.plan.failure:
                raise UpstreamCut("planned")
            call.facts.usage = Usage(7, 1, 0)
            return Reply(200, [], body=self.name.encode())
        stream = Stream(_Source(self, self._clock), [FactsTap(call.facts, lambda: Usage(7, 1, 0))], first=ROLE)
        stream.on_end.append(self.ends.append)
        return Reply(200, [(b"content-type", b"text/event-stream")], stream=stream)


class _Source:
    """The content of a stream, once."""

    def __init__(self, leaf: Timed, clock: Clock) -> None:
        self._leaf = leaf
        self._clock = clock
        self._is_said = False

    async def read(self) -> bytes:
        """The content, then the end."""
        if self._is_said:
            return b""
        await self._clock.sleep(self._leaf.plan.content_s)
        if self._leaf.plan.failure == "cut":
            raise UpstreamCut("planned")
        self._is_said = True
        return encode_event(b'{"error":{"message":"planned"}}') if self._leaf.plan.failure else content(self._leaf.name)

    async def aclose(self) -> None:
        """Nothing to release."""


class Result(NamedTuple):
    """What was built, the call, its answer (or status, or error), when that was sure, and tasks that were left."""

    hedged: Hedged
    leaves: tuple[Timed, Timed]
    call: Call
    said: bytes | int | type[UpstreamError]
    sure_s: float
    tasks_left: int


def run_virtually(plans: tuple[Plan, Plan], *, stream: bool, saved: int = 20) -> Result:
    """One call by these plans in virtual time."""
    loop = VirtualLoop()  # type: ignore[abstract]  # what the world is needed for is left out
    clock = VirtualClock(loop)
    leaves = Timed("a", plans[0], clock), Timed("b", plans[1], clock)
    hedged = Hedged(leaves, clock, saved=saved)
    hedged.teach()
    call = make_call(stream=stream, deadline=1e9)

    async def work() -> Result:
        said: bytes | int | type[UpstreamError]
        try:
            reply = await hedged.pool.send(call)
            sure_s = clock.now()
            said = await read_all(reply) if reply.status < 400 else reply.status
        except UpstreamError as error:
            sure_s = clock.now()
            said = type(error)
        await asyncio.sleep(0)
        return Result(hedged, leaves, call, said, sure_s, len(asyncio.all_tasks()) - 1)

    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


# No two sums of these, with or without LATE_S, are the same moment.
_PLANS = st.builds(
    Plan,
    head_s=st.sampled_from([0.0, 0.03, 0.09, 0.11, 0.37, 5.0]),
    content_s=st.sampled_from([0.0, 0.03, 0.17, 5.0]),
    failure=st.sampled_from(["", "", "status", "cut", "event"]),
)


@given(first=_PLANS, second=_PLANS, stream=st.booleans())
def test_hedge_any_two_attempts_give_one_whole_answer_of_the_first_content(
    first: Plan, second: Plan, stream: bool
) -> None:
    """The earliest content wins, whole and alone; an error only where both fail; nothing is left of the other."""
    hedged, (one, two), call, said, sure_s, tasks_left = run_virtually((first, second), stream=stream)
    is_hedged = first.end_s > LATE_S + 1e-6
    ends = {"a": first.end_s if not first.failure else None}
    ends["b"] = LATE_S + second.end_s if is_hedged and not second.failure else None
    answers = sorted((at, name) for name, at in ends.items() if at is not None)

    assert len(two.asked_at) == is_hedged == call.facts.attempts - 1
    if answers:
        at, name = answers[0]
        assert said == (ROLE + content(name) if stream else name.encode())
        assert sure_s == pytest.approx(at, abs=1e-3)
        assert call.facts.backend == name
        assert call.facts.usage == Usage(7, 1, 0)
        assert call.facts.stream_end == (StreamEnd.CLEAN if stream else None)
        assert hedged.hedging.statistics().won == (name == "b")
    else:
        last = max(first.end_s, LATE_S + second.end_s if is_hedged else 0.0)
        assert sure_s == pytest.approx(last, abs=1e-3)
        assert said == 500 or isinstance(said, type)
    assert (tasks_left, hedged.num_in_flight()) == (0, 0)
    losers = [
        leaf for leaf in (one, two) if leaf.asked_at and not leaf.plan.failure and leaf.name != call.facts.backend
    ]
    for loser in losers if answers else ():
        assert loser.cancelled or loser.ends == [StreamEnd.CLIENT_GONE]
    for leaf in (one, two):
        (breaker,) = hedged.pool.breakers_of(leaf)
        has_failed = leaf.asked_at and leaf.plan.failure and _was_seen(leaf, one, sure_s)
        assert breaker.snapshot().consecutive_failures == bool(has_failed)


def _was_seen(leaf: Timed, first: Timed, sure_s: float) -> bool:
    """Whether a failure came before the call was decided."""
    started = 0.0 if leaf is first else LATE_S
    return started + leaf.plan.end_s <= sure_s + 1e-3


async def test_hedge_answers_that_come_together_are_one_answer(clock: FakeClock) -> None:
    """Both are there in the same moment: the first is the answer, the second is closed all the same."""
    together = asyncio.Event()
    replies = {name: stream_reply(content(name)) for name in "ab"}

    def saying(name: str) -> Played:
        async def say(_: Call) -> Reply:
            await together.wait()
            return replies[name]

        return Played(name, say)

    leaves = saying("a"), saying("b")
    hedged = Hedged(leaves, clock)
    hedged.teach()
    task = asyncio.ensure_future(hedged.pool.send(make_call(stream=True, deadline=1e9)))
    while not leaves[1].calls:
        await clock.advance(0.01)
    together.set()
    reply = await task
    said = await read_all(reply)
    loser = replies["b"].stream

    assert reply is replies["a"]
    assert said == content("a")
    assert loser is not None
    assert loser.end is StreamEnd.CLIENT_GONE
    assert hedged.num_in_flight() == 0


async def test_hedge_that_is_cancelled_twice_leaves_nobody_behind(clock: FakeClock) -> None:
    """A client leaves, and while the first attempt is being ended its time is up too: the second ends all the same."""
    ended: list[str] = []
    is_over = asyncio.Event()

    def lingering(name: str) -> Played:
        async def linger(_: Call) -> Reply:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)
                await is_over.wait()
            raise AssertionError

        return Played(name, linger)

    leaves = lingering("a"), lingering("b")
    hedged = Hedged(leaves, clock)
    hedged.teach()
    task = asyncio.ensure_future(hedged.pool.send(make_call(stream=True, deadline=1e9)))
    while not leaves[1].calls:
        await clock.advance(0.01)
    for _ in range(2):
        task.cancel()
        await settle()
    is_over.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()

    assert sorted(ended) == ["a", "b"]
    assert hedged.num_in_flight() == 0


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_hedge_without_budget_waits_for_the_first(stream: bool) -> None:
    """A late call stays alone, and that is counted."""
    hedged, (_, two), _, said, sure_s, _ = run_virtually((Plan(3.0), Plan(0.0)), stream=stream, saved=0)

    assert said == (ROLE + content("a") if stream else b"a")
    assert sure_s == pytest.approx(3.0)
    assert two.asked_at == []
    assert hedged.hedging.statistics().over_budget == 1


@given(calls=st.lists(st.booleans(), max_size=400), share=st.sampled_from([0.02, 0.05, 0.1, 0.5]))
def test_hedge_budget_never_gives_more_than_its_share(calls: list[bool], share: float) -> None:
    """After any calls, spent is at most their share; over any run of them, at most that and the ten that were saved."""
    budget = HedgeBudget(share)
    spent = [0]
    for wants in calls:
        budget.add_call()
        has_spent = wants and budget.can_spend()
        if has_spent:
            budget.spend()
        spent.append(spent[-1] + has_spent)

    assert spent[-1] <= share * len(calls) + 1e-6
    for begin in range(0, len(spent), 25):
        assert spent[-1] - spent[begin] <= 10 + share * (len(spent) - 1 - begin) + 1e-6


def test_hedge_budget_gives_what_was_earned() -> None:
    """Twenty calls of 5 % are one hedge, to the call."""
    budget = HedgeBudget(0.05)
    can = []
    for _ in range(20):
        can.append(budget.can_spend())
        budget.add_call()

    assert (any(can), budget.can_spend()) == (False, True)


@pytest.mark.parametrize("quantile", [0.9, 0.95, 0.99])
def test_lateness_finds_the_quantile(quantile: float) -> None:
    """Of answers that scatter around their predictions, as many are late as it is to be, wherever it began."""
    random = Random(1)
    lateness = Lateness(quantile)
    late = 0
    for number in range(30_000):
        is_late = random.lognormvariate(0.5, 0.6) > lateness.factor
        lateness.note(is_late=is_late)
        late += is_late and number >= 5_000

    assert late / 25_000 == pytest.approx(1 - quantile, rel=0.05)

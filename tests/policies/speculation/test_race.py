"""Races in virtual time: who answers when, what is told of it, what is spent, and what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from backends.charges.usage import Usage
from backends.clock import Clock
from backends.drafts.facts import SpeculationFacts
from backends.errors import UpstreamCut, UpstreamError
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Facts, Reply, Statistics
from backends.sse import encode_event
from backends.stream import Stream, StreamEnd
from gateway.simulate.virtual_loop import VirtualClock
from policies.speculation.race import Race
from policies.speculation.settings import RacePolicy
from tests.support.calls import make_call
from tests.support.policy.admission import in_virtual_time
from tests.support.policy.pool import Pieces, error_reply

IN_TIME_S, LATE_S = 0.1, 9.0
POLICY = RacePolicy(mode="race", draft="small", model=None, budget=0.5, quantile=0.9)


class Runner:
    """A backend that answers after the seconds that a test sets, or fails then."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.capabilities = Capabilities(operations=frozenset({Operation.CHAT}))
        self.after_s = IN_TIME_S
        self.failure: UpstreamError | int | None = None
        self.asked = 0
        self.cancelled = 0
        self.sources: list[Pieces] = []
        self._clock = clock

    async def open(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""

    def statistics(self) -> Statistics:
        """Calls taken."""
        return Statistics(sent=self.asked)

    async def send(self, call: Call) -> Reply:
        """Its name as a stream, or its failure."""
        self.asked += 1
        call.facts.backend = self.name
        try:
            await self._clock.sleep(self.after_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.failure, UpstreamError):
            raise self.failure
        if self.failure is not None:
            return error_reply(self.failure)
        call.facts.first_token_at = self._clock.now()
        call.facts.usage = Usage(1, 1)
        self.sources.append(Pieces())
        content = encode_event(b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % self.name.encode())
        stream = Stream(self.sources[-1], [_Told(call.facts, self.name)], first=content)
        return Reply(200, [(b"content-type", b"text/event-stream")], stream=stream)


class _Told:
    """Tells at the end of an answer what its own drafts have come to, as an engine does."""

    def __init__(self, facts: Facts, name: str) -> None:
        self._facts, self._name = facts, name

    def feed(self, piece: bytes) -> None:
        """Nothing."""

    def end(self, how: StreamEnd) -> None:
        """Tell."""
        self._facts.speculation = SpeculationFacts(self._name)


class Course:
    """A race whose target is known to be in time after 0.1 s, with a budget that is full."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.target, self.draft = Runner("big", clock), Runner("small", clock)
        self.race = Race(self.target, self.draft, POLICY, clock)

    async def learn(self) -> None:
        """So many calls in time that the next late one is noticed."""
        for _ in range(60):
            await self.ask()
        self.target.asked = self.draft.asked = 0

    async def ask(self, **extra: Any) -> tuple[Call, Reply, float]:
        """One call, read to its end: with its answer, and the seconds until there was something of it."""
        call = make_call(stream=True, deadline=1e9, extra=extra)
        began = self.clock.now()
        reply = await self.race.send(call)
        seconds = self.clock.now() - began
        assert reply.stream is None or await reply.stream.read()
        await reply.aclose()
        return call, reply, seconds


def on_course(run: Callable[[Course], Awaitable[None]]) -> None:
    """Run it in virtual time."""

    async def main(clock: VirtualClock) -> None:
        course = Course(clock)
        await course.learn()
        await run(course)

    in_virtual_time(main)


def test_race_with_a_target_in_time_asks_nobody_else() -> None:
    """The draft is not asked, and the answer is the target's."""

    async def run(course: Course) -> None:
        call, reply, _ = await course.ask()

        assert (call.facts.draft, reply.header(b"x-slipstream-stage")) == ("unused", b"target")
        assert course.draft.asked == 0

    on_course(run)


def test_race_with_a_late_target_is_won_by_the_draft() -> None:
    """Long before the target would have come; what is told of the call is of the draft, and the target is left."""

    async def run(course: Course) -> None:
        course.target.after_s = LATE_S
        call, reply, seconds = await course.ask()

        assert (call.facts.draft, reply.header(b"x-slipstream-stage")) == ("accepted", b"draft")
        assert (call.facts.backend, call.facts.usage) == ("small", Usage(1, 1))
        assert call.facts.speculation == SpeculationFacts("small")
        assert seconds < 1.0
        assert course.target.cancelled == 1
        assert course.race._target.in_flight.requests == 0

    on_course(run)


def test_race_does_nothing_twice() -> None:
    """A call that has tools of its provider, or is kept, is the target's alone, however late that is."""

    async def run(course: Course) -> None:
        course.target.after_s = LATE_S
        for extra in ({"mcp_servers": [{"url": "x"}]}, {"store": True}, {"web_search_options": {}}):
            call, _, seconds = await course.ask(**extra)
            assert (call.facts.draft, seconds) == ("unfit", pytest.approx(LATE_S))
        assert course.draft.asked == 0

    on_course(run)


@pytest.mark.parametrize(
    ("after_s", "failure", "outcome"),
    [(2 * LATE_S, None, "late"), (0.1, 500, "failed"), (0.1, UpstreamCut("gone"), "failed")],
    ids=["later", "500", "cut"],
)
def test_race_with_a_draft_that_is_no_help_is_the_targets(
    after_s: float, failure: UpstreamError | int | None, outcome: str
) -> None:
    """The target answers in its own time, and the draft is left, or never shows."""

    async def run(course: Course) -> None:
        course.target.after_s = LATE_S
        course.draft.after_s, course.draft.failure = after_s, failure
        call, reply, seconds = await course.ask()

        assert (call.facts.draft, reply.status, seconds) == (outcome, 200, pytest.approx(LATE_S))
        assert (call.facts.backend, course.draft.asked) == ("big", 1)
        assert course.draft.cancelled == int(failure is None)

    on_course(run)


@pytest.mark.parametrize("failure", [503, UpstreamCut("the target is gone")], ids=["503", "cut"])
def test_race_that_both_lose_ends_as_the_target_did(failure: UpstreamError | int) -> None:
    """The target's failure says most."""

    async def run(course: Course) -> None:
        course.target.after_s, course.target.failure = LATE_S, failure
        course.draft.failure = UpstreamCut("the draft is gone")
        if isinstance(failure, int):
            assert (await course.ask())[1].status == failure
        else:
            with pytest.raises(UpstreamCut, match="the target is gone"):
                await course.ask()
        assert course.race._target.in_flight.requests == 0

    on_course(run)


def test_race_stays_within_its_budget() -> None:
    """Where every call is late, at most half of them, and ten saved ones, are asked twice."""

    async def run(course: Course) -> None:
        course.target.after_s = LATE_S
        for _ in range(100):
            await course.ask()

        assert course.draft.asked <= 60

    on_course(run)


def test_race_that_is_cancelled_leaves_both() -> None:
    """A client that goes takes along whoever was asked."""

    async def run(course: Course) -> None:
        course.target.after_s = course.draft.after_s = LATE_S
        task = asyncio.get_running_loop().create_task(course.ask())
        await course.clock.sleep(3.0)
        task.cancel()
        await asyncio.wait([task])

        assert (course.target.cancelled, course.draft.cancelled) == (1, 1)
        assert course.race._target.in_flight.requests == 0

    on_course(run)


def test_race_of_what_is_no_answer_to_a_prompt_is_the_targets() -> None:
    """Calls that keep something, or are meant for one backend, are asked once."""

    async def run(course: Course) -> None:
        course.target.after_s = LATE_S
        call = make_call(stream=True, deadline=1e9, pinned="big")
        reply = await course.race.send(call)
        await reply.aclose()

        assert (call.facts.draft, course.draft.asked) == ("unfit", 0)

    on_course(run)

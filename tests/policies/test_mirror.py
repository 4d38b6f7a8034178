"""Mirrors: what is copied and what is not, what is made of it, who is promoted, and that nothing of it shows."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from backends.charges.charge import Charge
from backends.clock import SystemClock
from backends.errors import UpstreamCut
from backends.http.openai import KIND
from backends.http.openai_settings import OpenAIConfig
from backends.operations import Operation
from backends.protocol import Call, Facts, Reply, Timeouts
from backends.stream import Stream
from policies.mirror.evidence import Evidence
from policies.mirror.settings import PromotionPolicy
from policies.pool.member import Member
from tests.support.calls import make_call, read_all, streamed_text
from tests.support.clock import FakeClock, settle
from tests.support.policy.mirrored import RIGHT, Mirrored
from tests.support.policy.pool import Pieces, make_pool
from tests.support.servers.openai_server import Behaviour, OpenAIServer

RULE = PromotionPolicy()


def drawn(losses: float, wins: float, seed: int) -> Any:
    """Of all calls the candidate loses and wins so much, of a target that is right in eight of ten."""
    random = Random(seed)

    def draw() -> tuple[bool, bool]:
        is_right = random.random() < 0.8
        return is_right, is_right != (random.random() < (losses / 0.8 if is_right else wins / 0.2))

    return draw


async def decided(mirrored: Mirrored, at_most: int = 6000) -> str:
    """The verdict, after as many calls as it takes."""
    for _ in range(at_most):
        await mirrored.ask()
        if mirrored.mirror.verdict != "open":
            break
    return mirrored.mirror.verdict


async def test_mirror_promotes_an_equal_cheaper_candidate_and_calls_go_there() -> None:
    """From then on it answers, and nothing is copied any more."""
    mirrored = Mirrored(drawn(0.1, 0.1, 1), FakeClock(), 1)
    assert await decided(mirrored) == "promote"
    asked = len(mirrored.target.calls), len(mirrored.judge.calls)

    call, _ = await mirrored.ask()
    assert call.facts.backend == "new"
    assert (len(mirrored.target.calls), len(mirrored.judge.calls)) == asked


@pytest.mark.parametrize(
    "asked",
    [
        {"extra": {"mcp_servers": [{"url": "https://mail.example/mcp"}]}},
        {"operation": Operation.RESPONSES, "extra": {"background": True}},
        {"operation": Operation.EMBEDDING},
    ],
    ids=["acts", "job", "vectors"],
)
async def test_promoted_candidate_is_not_asked_for_what_texts_say_nothing_of(asked: dict[str, Any]) -> None:
    """What acts would be done twice where it fails, and vectors of two models do not compare."""
    mirrored = Mirrored(lambda: (True, True), FakeClock(), 9)
    mirrored.mirror.verdict = "promote"
    await mirrored.ask(**asked)
    assert (len(mirrored.target.calls), len(mirrored.candidate.calls)) == (1, 0)

    await mirrored.ask()
    assert (len(mirrored.target.calls), len(mirrored.candidate.calls)) == (1, 1)


async def test_promoted_candidate_has_all_of_the_time_for_a_stream_that_has_begun() -> None:
    """Half of it is for it to begin, so that whoever follows has the other half; behind that nobody follows."""
    clock = SystemClock()
    mirrored = Mirrored(lambda: (True, True), clock, 13)
    mirrored.mirror.verdict = "promote"
    async with OpenAIServer(Behaviour(text="a b c d e f g h", event_delay_s=0.2)) as server:
        leaf = KIND.build("new", OpenAIConfig(base_url=server.base_url), clock)
        pool = make_pool([Member(leaf)], clock, falls_back_on=["timeout", "error"])
        mirrored.candidate.send = pool.send  # type: ignore[method-assign]  # over a socket, for once
        reply = await mirrored.mirror.send(make_call(stream=True, timeouts=Timeouts(total_s=3.0)))
        said = await read_all(reply)
        server.next(Behaviour(stall_before_head=True))
        late = await mirrored.mirror.send(make_call(stream=True, timeouts=Timeouts(total_s=3.0)))
        await leaf.aclose()

    assert streamed_text(said) == "a b c d e f g h"
    assert late.body is not None
    assert RIGHT.encode() in late.body


async def test_mirror_gives_up_a_worse_candidate() -> None:
    """Half as dear does not help."""
    mirrored = Mirrored(drawn(0.15, 0.05, 2), FakeClock(), 2)

    assert await decided(mirrored) == "worse"
    call, _ = await mirrored.ask()
    assert call.facts.backend == "big"


async def test_mirror_of_an_equal_candidate_that_is_dearer_is_not_promoted() -> None:
    """The rule asks for both."""
    assert await decided(Mirrored(drawn(0.1, 0.1, 3), FakeClock(), 3, cost=120)) == "dear"


async def test_mirror_without_a_rule_only_watches() -> None:
    """There is evidence, and no verdict."""
    mirrored = Mirrored(drawn(0.1, 0.1, 4), FakeClock(), 4, promote_when=None)
    for _ in range(300):
        await mirrored.ask()

    evidence = mirrored.mirror.evidence
    assert mirrored.mirror.verdict == "open"
    assert evidence.num_pairs == 300
    assert evidence.agreement is not None
    assert evidence.agreement.low < 0.8 < evidence.agreement.high
    assert evidence.cost is not None
    assert evidence.cost.value == pytest.approx(0.5)


async def test_mirror_copies_its_share_and_nothing_that_is_no_text() -> None:
    """One in twenty, without the stream that the client wants; tools, images and other operations are not copied."""
    mirrored = Mirrored(lambda: (True, True), FakeClock(), 5, share=0.05)
    for _ in range(1000):
        await mirrored.ask()
    assert 25 <= len(mirrored.candidate.calls) <= 80

    mirrored = Mirrored(lambda: (True, True), FakeClock(), 5)
    await mirrored.ask(extra={"tools": [{}]})
    assert mirrored.candidate.calls == []
    await mirrored.ask(extra={"stream_options": {}})
    (copy,) = mirrored.candidate.calls
    assert copy.body is not None
    assert "stream_options" not in copy.body
    assert copy.facts is not mirrored.target.calls[-1].facts


async def test_mirror_of_a_candidate_that_hangs_holds_eight_calls_and_no_large_ones() -> None:
    """However many come: whoever is copied has its answer at once, and what waits for the candidate is bounded."""
    mirrored = Mirrored(lambda: (True, True), FakeClock(), 10)
    hanging: list[Call] = []

    async def hang(call: Call) -> Reply:
        hanging.append(call)
        await asyncio.Event().wait()
        raise AssertionError

    mirrored.candidate.send = hang  # type: ignore[method-assign]  # this one's silence is the case
    large = make_call("x" * 1024**2, deadline=1e12)
    for call in (large, *(make_call(deadline=1e12) for _ in range(100))):
        assert (await mirrored.mirror.send(call)).status == 200
        await settle()
    assert len(hanging) == 8
    assert max(len(call.raw) for call in hanging) < 1024**2

    await mirrored.mirror.aclose()


async def test_mirror_compares_no_answer_that_is_too_long() -> None:
    """A whole one either: it would be held for as long as the candidate takes."""
    mirrored = Mirrored(lambda: (True, True), FakeClock(), 14)
    mirrored.target.says = lambda call: "x" * 1024**2
    await mirrored.ask()
    assert mirrored.candidate.calls == []

    mirrored.target.says = lambda call: "x" * 1000
    await mirrored.ask()
    assert len(mirrored.candidate.calls) == 1


async def test_mirror_records_no_more_streams_at_once_than_it_has_memory_for() -> None:
    """Each may be a mebibyte; those that are over make room for others, left in the middle or not."""
    mirrored = Mirrored(lambda: (True, True), FakeClock(), 11)
    frame = (
        b'data: {"id":"a","object":"chat.completion.chunk","choices":[{"index":0,"delta":%b,"finish_reason":%b}]}\n\n'
    )
    events = frame % (b'{"content":"%b"}' % RIGHT.encode(), b"null") + frame % (b"{}", b'"stop"') + b"data: [DONE]\n\n"

    async def streaming(call: Call) -> Reply:
        return Reply(200, [(b"content-type", b"text/event-stream")], stream=Stream(Pieces(events)))

    mirrored.target.send = streaming  # type: ignore[method-assign]  # it answers whole otherwise
    for is_read in (True, False, True):
        replies = [await mirrored.mirror.send(make_call(stream=True, deadline=1e12)) for _ in range(100)]
        for reply in replies:
            assert not is_read or await read_all(reply) == events
            await reply.aclose()
            await mirrored.mirror.wait()

    assert len(mirrored.candidate.calls) == 2 * 64


async def test_mirror_that_is_closed_tells_what_its_copies_have_cost() -> None:
    """A reload ends them in the middle; they have been sent all the same."""
    mirrored = Mirrored(lambda: (True, True), FakeClock(), 12)
    told: list[Charge] = []
    is_asked = asyncio.Event()

    async def hang(call: Call) -> Reply:
        call.facts.charge("new", "m")
        is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    mirrored.candidate.send = hang  # type: ignore[method-assign]  # this one's silence is the case
    await mirrored.mirror.send(make_call(deadline=1e12, facts=Facts(extra=told.append)))
    await is_asked.wait()
    await mirrored.mirror.aclose()

    assert [(charge.backend, charge.is_for_operator) for charge in told] == [("new", True)]


async def test_mirror_rests_when_its_tokens_are_spent() -> None:
    """Twenty tokens a copy, and the judge's where answers differ; a day later there are more."""
    clock = FakeClock()
    mirrored = Mirrored(lambda: (True, True), clock, 6, max_daily_tokens=100)
    for _ in range(50):
        await mirrored.ask()
    assert len(mirrored.candidate.calls) == 5

    await clock.advance(86_401)
    await mirrored.ask()
    assert len(mirrored.candidate.calls) == 6


@pytest.mark.parametrize("failure", [500, "cut", "garbage"])
async def test_mirror_of_a_candidate_that_fails_never_shows(failure: Any) -> None:
    """The client has its answer; the candidate has lost the pair."""
    mirrored = Mirrored(lambda: (True, True), FakeClock(), 7)

    async def fail(call: Call) -> Reply:
        if failure == "cut":
            raise UpstreamCut("gone")
        body = b"{}" if failure == "garbage" else b'{"error": {}}'
        return Reply(200 if failure == "garbage" else 500, [(b"content-type", b"application/json")], body=body)

    mirrored.candidate.send = fail  # type: ignore[method-assign]  # this one's failure is the case
    _, reply = await mirrored.ask()

    assert reply.body is not None
    assert RIGHT.encode() in reply.body
    assert (mirrored.mirror.evidence.num_pairs, mirrored.mirror.evidence.losses) == (1, 1)


async def test_mirror_that_is_closed_leaves_its_copies() -> None:
    """What is being compared ends with the policy."""
    mirrored = Mirrored(lambda: (True, True), FakeClock(), 8)
    is_left = asyncio.Event()

    async def silent(call: Call) -> Reply:
        try:
            await asyncio.Event().wait()
        finally:
            is_left.set()
        raise AssertionError

    mirrored.candidate.send = silent  # type: ignore[method-assign]  # this one's silence is the case
    call = mirrored.target.calls
    task = asyncio.create_task(mirrored.ask())
    while not call:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await mirrored.mirror.aclose()
    await task

    assert is_left.is_set()
    assert mirrored.mirror.evidence.num_pairs == 0


@pytest.mark.parametrize(
    ("losses", "wins", "never"),
    [
        *((0.1, 0.1, "worse"), (0.01, 0.01, "worse"), (0.0, 0.0, "undecided"), (0.0, 0.0, "worse")),
        *((0.125, 0.075, "promote"), (0.06, 0.01, "promote"), (0.05, 0.0, "promote")),
    ],
)
def test_sequential_test_hardly_ever_errs(losses: float, wins: float, never: str) -> None:
    """At most one wrong decision in 200 runs, where 0.2 are expected."""
    random, wrong = Random(0), 0
    for _ in range(200):
        evidence = Evidence()
        while (verdict := evidence.verdict(PromotionPolicy(cost_below=None))) == "open":
            for _ in range(20):
                draw = random.random()
                evidence.note_pair("ours" if draw < losses else "theirs" if draw < losses + wins else "neither")
        wrong += verdict == never

    assert wrong <= 1


def test_evidence_of_nothing_is_none() -> None:
    """Limits are not made of nothing, and a rule asks for more."""
    evidence = Evidence()

    assert (evidence.agreement, evidence.gain, evidence.cost) == (None, None, None)
    assert evidence.verdict(RULE) == "open"


def test_evidence_whose_costs_are_not_known_promotes_nobody() -> None:
    """The question stays open until the cap ends it."""
    evidence = Evidence()
    for _ in range(RULE.max_pairs):
        evidence.note_pair("neither")

    assert evidence.verdict(RULE) == "undecided"

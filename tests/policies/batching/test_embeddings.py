"""Embedding calls of many callers: who waits, who shares, and what each of them gets. All in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.charges.usage import Usage
from backends.errors import (
    Draining,
    Overloaded,
    SlipstreamError,
    TotalTimeout,
    UpstreamCut,
    UpstreamGarbage,
)
from backends.operations import Operation
from backends.protocol import Call, Reply
from backends.stream import Stream
from gateway.simulate.virtual_loop import VirtualClock
from policies.batching.embeddings import BatchingStatistics, EmbeddingBatches
from tests.support.calls import make_call
from tests.support.policy.batching import (
    EACH_S,
    FIXED_S,
    SerialEmbedder,
    answer,
    embed,
    in_virtual_time,
    make_stage,
    settled,
    texts_of,
    tokens,
    vector,
    vectors_of,
)
from tests.support.policy.pool import Pieces, error_reply

NOTHING = BatchingStatistics(groups=0, waiting=0, in_flight=0)


async def _send_all(stage: EmbeddingBatches, calls: Sequence[Call]) -> list[Reply | BaseException]:
    """One after the other, at the same moment: the first goes alone and the others share."""
    tasks = [asyncio.create_task(stage.send(call)) for call in calls]
    outcomes = await settled(tasks)
    await asyncio.sleep(0)
    assert stage.batching_statistics() == NOTHING
    return outcomes


def _replies(outcomes: Sequence[Reply | BaseException]) -> list[Reply]:
    replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
    assert len(replies) == len(outcomes), outcomes
    return replies


def test_idle_backend_gets_the_call_as_it_came() -> None:
    """Not a byte is changed and no time is lost."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        call = embed("a")
        [reply] = _replies(await _send_all(make_stage(upstream, clock), [call]))

        assert upstream.calls == [call]
        assert upstream.sent_at == [0.0]
        assert clock.now() == pytest.approx(FIXED_S + EACH_S)
        assert vectors_of(reply) == [vector("a")]

    in_virtual_time(scene)


def test_calls_while_busy_share_one_upstream_call() -> None:
    """Each gets its own vectors, whatever form its input had, and its part of the usage."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        calls = [embed("first"), embed("b"), embed(["c", "dd"]), embed("e")]
        replies = _replies(await _send_all(make_stage(upstream, clock), calls))

        assert [texts_of(call) for call in upstream.calls] == [["first"], ["b", "c", "dd", "e"]]
        assert [vectors_of(reply) for reply in replies[1:]] == [
            [vector("b")],
            [vector("c"), vector("dd")],
            [vector("e")],
        ]
        usages = [msgspec.json.decode(reply.body or b"")["usage"] for reply in replies[1:]]
        assert sum(usage["prompt_tokens"] for usage in usages) == sum(map(tokens, ["b", "c", "dd", "e"]))
        assert [call.facts.usage for call in calls[1:]] == [Usage(usage["prompt_tokens"]) for usage in usages]
        assert [call.facts.attempts for call in calls] == [1, 1, 0, 0]
        assert {call.facts.backend for call in calls} == {"embedder"}
        assert {call.facts.sent_at for call in calls[1:]} == {FIXED_S + EACH_S}

    in_virtual_time(scene)


def test_tokens_and_texts_never_share() -> None:
    """A list is of one kind."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        calls = [embed("a"), embed([1, 2]), embed("b"), embed([[3], [4, 5]]), embed("c"), embed([6])]
        replies = _replies(await _send_all(make_stage(upstream, clock), calls))

        assert [texts_of(call) for call in upstream.calls] == [["a"], [[1, 2]], ["b", "c"], [[3], [4, 5], [6]]]
        assert vectors_of(replies[3]) == [vector([3]), vector([4, 5])]

    in_virtual_time(scene)


@pytest.mark.parametrize(
    "call",
    [
        make_call(operation=Operation.CHAT, deadline=1e6),
        embed("a" * 300_000),
        embed(["a"] * 65),
        embed(["a", {"image": "b"}]),
    ],
    ids=["chat", "long", "many", "mixed"],
)
def test_what_cannot_share_waits_for_nobody(call: Call) -> None:
    """It goes on at once and as it came, beside whatever is out."""

    class Straight(SerialEmbedder):
        async def send(self, call: Call) -> Reply:
            self.calls.append(call)
            return Reply(200, [], body=b"{}")

    async def scene(clock: VirtualClock) -> None:
        upstream = Straight(clock)
        assert (await make_stage(upstream, clock).send(call)).body == b"{}"

        assert upstream.calls == [call]

    in_virtual_time(scene)


def test_policy_bounds_batches_and_how_many_are_out() -> None:
    """Inputs and upstream calls at once, in the order in which they came."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        stage = make_stage(upstream, clock, policy={"max_batch": 3, "max_in_flight": 2})
        calls = [embed([f"{at}", f"{at}'"]) if at == 3 else embed(f"{at}") for at in range(7)]
        _replies(await _send_all(stage, calls))

        assert [texts_of(call) for call in upstream.calls] == [["0"], ["1"], ["2", "3", "3'"], ["4", "5", "6"]]
        assert upstream.sent_at[:2] == [0.0, 0.0]

    in_virtual_time(scene)


def test_policy_bounds_bytes() -> None:
    """Long texts fill a batch sooner."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        stage = make_stage(upstream, clock, policy={"max_bytes": "2KiB"})
        _replies(await _send_all(stage, [embed(letter * 900) for letter in "abcd"]))

        assert [len(texts_of(call)) for call in upstream.calls] == [1, 2, 1]

    in_virtual_time(scene)


def test_one_more_than_may_wait_is_refused_with_the_time_until_there_is_room() -> None:
    """The refused one is not there any more; the others are answered."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        stage = make_stage(upstream, clock, policy={"max_waiting": 4, "max_batch": 2})
        _replies(await _send_all(stage, [embed("learn")]))
        *others, refused = await _send_all(stage, [embed(f"{at}") for at in range(6)])

        assert len(_replies(others)) == 5
        assert isinstance(refused, Overloaded)
        assert refused.retry_after_s == pytest.approx(2 * (FIXED_S + EACH_S))

    in_virtual_time(scene)


def test_late_callers_are_dropped_and_their_places_filled() -> None:
    """Who cannot be answered in time any more costs the others nothing."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        stage = make_stage(upstream, clock, policy={"max_batch": 2})
        calls = [embed("a"), embed("late", deadline=0.008), embed("b"), embed("c"), embed("d", deadline=0.02)]
        first, late, *others = await _send_all(stage, calls)

        assert len(_replies([first, *others[:2]])) == 3
        assert isinstance(late, Overloaded)
        # The time of its own batch decides: two batches are before it.
        assert isinstance(others[2], Reply)
        assert [texts_of(call) for call in upstream.calls] == [["a"], ["b", "c"], ["d"]]

    in_virtual_time(scene)


def test_idle_backend_gets_a_call_that_is_hardly_in_time() -> None:
    """What was learned turns nobody away who need not wait: it may be wrong, and only trying shows that."""

    async def scene(clock: VirtualClock) -> None:
        stage = make_stage(SerialEmbedder(clock), clock)
        await stage.send(embed("learn"))

        assert isinstance(await stage.send(embed("a", deadline=clock.now() + FIXED_S / 2)), Reply)

    in_virtual_time(scene)


def test_deadline_of_one_caller_ends_only_its_own_wait() -> None:
    """The upstream call goes on for the others."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock, each_s=1.0)
        stage = make_stage(upstream, clock, policy={"patience": "1h"})
        calls = [embed("a"), embed("b"), embed("c", deadline=2.5)]
        first, second, third = await _send_all(stage, calls)

        assert len(_replies([first, second])) == 2
        assert isinstance(third, TotalTimeout)
        assert upstream.num_cancelled == 0

    in_virtual_time(scene)


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_one_bad_input_fails_alone(status: int) -> None:
    """The callers part until the bad one is alone with its error; the others are answered in few calls."""

    def refuse(call: Call) -> Reply:
        bad = any(text == "poison" for text in texts_of(call))
        return error_reply(status, f"status {status}") if bad else answer(call)

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        upstream.outcomes = [refuse] * 100
        stage = make_stage(upstream, clock)
        calls = [embed("a"), *(embed(f"{at}") for at in range(15)), embed("poison")]
        *good, bad = _replies(await _send_all(stage, calls))

        assert [vectors_of(reply)[0] for reply in good[1:]] == [vector(f"{at}") for at in range(15)]
        assert (bad.status, upstream.calls[-1]) == (status, calls[-1])
        assert [len(texts_of(call)) for call in upstream.calls] == [1, 16, 8, 8, 4, 4, 2, 2, 1, 1]
        assert stage.take_tally().splits == {"refused": 4}

    in_virtual_time(scene)


def test_answer_of_a_proxy_parts_a_batch_too() -> None:
    """A page that is no JSON says nothing of the callers but that they were too many."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        upstream.outcomes = [answer, UpstreamGarbage("<html>")]
        replies = _replies(await _send_all(make_stage(upstream, clock), [embed("a"), embed("b"), embed("c")]))

        assert [vectors_of(reply) for reply in replies] == [[vector("a")], [vector("b")], [vector("c")]]

    in_virtual_time(scene)


def _without_index(call: Call) -> Reply:
    return Reply(200, [], body=msgspec.json.encode({"data": [{"embedding": [1.0]} for _ in texts_of(call)]}))


def _as_events(call: Call) -> Reply:
    return Reply(200, [], stream=Stream(Pieces(b"data: {}\n\n")))


@pytest.mark.parametrize("unreadable", [_without_index, _as_events])
def test_unreadable_answer_is_asked_for_again_one_by_one(unreadable: Any) -> None:
    """Nobody gets a vector that may be another's."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        upstream.outcomes = [answer, unreadable]
        stage = make_stage(upstream, clock)
        replies = _replies(await _send_all(stage, [embed("a"), embed("b"), embed("c")]))

        assert [vectors_of(reply) for reply in replies] == [[vector("a")], [vector("b")], [vector("c")]]
        assert stage.take_tally().splits == {"unreadable": 1}

    in_virtual_time(scene)


@pytest.mark.parametrize("status", [403, 404, 429, 502, 503])
def test_error_that_is_nobodys_fault_is_everyones(status: int) -> None:
    """It says nothing of an input, so nobody asks again; headers such as Retry-After go to all."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        upstream.outcomes = [answer, lambda _: error_reply(status, retry_after="7")]
        _, second, third = _replies(await _send_all(make_stage(upstream, clock), [embed("a"), embed("b"), embed("c")]))

        assert [(reply.status, reply.header(b"retry-after")) for reply in (second, third)] == [(status, b"7")] * 2
        assert second is not third
        assert second.headers is not third.headers
        assert len(upstream.calls) == 2

    in_virtual_time(scene)


def test_no_answer_is_told_to_everyone_with_what_was_learned() -> None:
    """The error is each caller's own object."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        upstream.outcomes = [answer, UpstreamCut("gone")]
        calls = [embed("a"), embed("b"), embed("c")]
        _, second, third = await _send_all(make_stage(upstream, clock), calls)

        assert isinstance(second, UpstreamCut)
        assert isinstance(third, UpstreamCut)
        assert second is not third
        assert [call.facts.backend for call in calls] == ["embedder"] * 3

    in_virtual_time(scene)


def test_mistake_of_ours_is_an_error_for_everyone() -> None:
    """Nobody is left waiting, and the log will say where it was."""

    def fail(call: Call) -> Reply:
        raise ZeroDivisionError

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        upstream.outcomes = [answer, fail]
        _, second, third = await _send_all(make_stage(upstream, clock), [embed("a"), embed("b"), embed("c")])

        assert isinstance(second, ZeroDivisionError)
        assert isinstance(third, ZeroDivisionError)

    in_virtual_time(scene)


def test_who_leaves_takes_only_its_own_inputs_away() -> None:
    """Before the call goes its inputs do not go; afterwards the others have their answer all the same."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        stage = make_stage(upstream, clock)
        first, waiting, sharing, staying = [
            asyncio.create_task(stage.send(embed(text))) for text in ("first", "waiting", "sharing", "staying")
        ]
        await asyncio.sleep(FIXED_S / 2)
        waiting.cancel()
        await asyncio.sleep(FIXED_S)
        sharing.cancel()
        outcomes = await settled([first, waiting, sharing, staying])

        assert [texts_of(call) for call in upstream.calls] == [["first"], ["sharing", "staying"]]
        assert vectors_of(_replies(outcomes[3:])[0]) == [vector("staying")]
        assert upstream.num_cancelled == 0
        assert stage.batching_statistics() == NOTHING

    in_virtual_time(scene)


def test_when_all_have_left_the_upstream_call_ends() -> None:
    """And the next one goes at once."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        stage = make_stage(upstream, clock, policy={"max_batch": 2})
        tasks = [asyncio.create_task(stage.send(embed(f"{at}"))) for at in range(4)]
        await asyncio.sleep(FIXED_S * 1.5)
        for task in tasks[1:3]:
            task.cancel()
        outcomes = await settled(tasks)

        assert upstream.num_cancelled == 1
        assert vectors_of(_replies(outcomes[3:])[0]) == [vector("3")]
        assert upstream.sent_at[2] == FIXED_S * 1.5

    in_virtual_time(scene)


def test_caller_that_leaves_at_the_moment_of_its_turn_gives_its_place_back() -> None:
    """Told to go alone and gone in the same moment: the next one goes instead."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        stage = make_stage(upstream, clock, policy={"max_batch": 2})
        first, second = [asyncio.create_task(stage.send(embed(text))) for text in "ab"]
        await asyncio.sleep(0)
        # Runs in the same step as the first one's answer, after the second was told and before it has woken.
        first.add_done_callback(lambda _: second.cancel())
        await settled([first, second])
        reply = await stage.send(embed("c"))

        assert vectors_of(reply) == [vector("c")]
        assert stage.batching_statistics() == NOTHING

    in_virtual_time(scene)


def test_call_that_hangs_keeps_nobody_waiting() -> None:
    """After `patience` those who wait go beside it."""

    class Hanging(SerialEmbedder):
        async def send(self, call: Call) -> Reply:
            if texts_of(call) == ["hang"]:
                await asyncio.sleep(3600)
            return await super().send(call)

    async def scene(clock: VirtualClock) -> None:
        upstream = Hanging(clock)
        stage = make_stage(upstream, clock, policy={"patience": "250ms"})
        hanging, *others = [asyncio.create_task(stage.send(embed(text))) for text in ("hang", "a", "b")]
        replies = _replies(await settled(others))

        assert upstream.sent_at == [0.25]
        assert [vectors_of(reply) for reply in replies] == [[vector("a")], [vector("b")]]
        assert stage.take_tally().overdue == 1
        await stage.send(embed("c"))
        assert upstream.sent_at[1] == pytest.approx(0.25 + FIXED_S + 2 * EACH_S)
        hanging.cancel()
        await settled([hanging])
        assert stage.batching_statistics() == NOTHING

    in_virtual_time(scene)


def test_closed_stage_ends_shared_calls_and_those_that_wait() -> None:
    """Everyone is told, and nothing is left running."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        stage = make_stage(upstream, clock, policy={"max_batch": 2})
        tasks = [asyncio.create_task(stage.send(embed(f"{at}"))) for at in range(6)]
        await asyncio.sleep(FIXED_S * 1.5)
        await stage.aclose()
        await stage.aclose()
        outcomes = await settled(tasks)

        assert vectors_of(_replies(outcomes[:1])[0]) == [vector("0")]
        assert all(isinstance(outcome, Draining) for outcome in outcomes[1:]), outcomes
        assert [texts_of(call) for call in upstream.calls] == [["0"], ["1", "2"]]
        assert stage.batching_statistics() == NOTHING

    in_virtual_time(scene)


def test_tally_counts_calls_sizes_and_waits_once() -> None:
    """What metrics are made of."""

    async def scene(clock: VirtualClock) -> None:
        stage = make_stage(SerialEmbedder(clock), clock)
        _replies(await _send_all(stage, [embed("a"), embed("b"), embed(["c", "d"])]))
        taken = stage.take_tally()

        assert taken.calls == {"alone": 1, "merged": 2}
        assert taken.sizes == [1, 3]
        assert taken.waits == pytest.approx([0.0, FIXED_S + EACH_S, FIXED_S + EACH_S])
        assert stage.take_tally().calls == {}

    in_virtual_time(scene)


@dataclass(frozen=True)
class Caller:
    """One of a random scene; times in seconds."""

    after_s: float
    texts: int
    group: int
    is_bad: bool
    leaves_after_s: float | None


CALLERS = st.builds(
    Caller,
    st.sampled_from([0.0, 0.0, 0.001, 0.003, 0.02]),
    st.integers(1, 4),
    st.integers(0, 1),
    st.sampled_from([False] * 7 + [True]),
    st.sampled_from([None, None, None, 0.0, 0.002, 0.009, 0.03]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(CALLERS, max_size=25), st.integers(2, 8), st.integers(1, 3))
def test_random_scene_agrees_with_the_model(callers: list[Caller], max_batch: int, max_in_flight: int) -> None:
    """Everyone gets exactly its own, nobody waits beside an idle backend, the bill adds up, nothing is left behind."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        stage = make_stage(
            upstream, clock, max_in_flight=max_in_flight, policy={"max_batch": max_batch, "patience": "1h"}
        )
        tasks: list[asyncio.Task[Reply]] = []
        calls: list[Call] = []
        idle_arrivals: list[tuple[str, float]] = []
        for number, caller in enumerate(callers):
            await asyncio.sleep(caller.after_s)
            word = "poison" if caller.is_bad else "text"
            texts = [f"{word} {number} {at} {'x' * (number % 5)}" for at in range(min(caller.texts, max_batch))]
            call = embed(texts if len(texts) > 1 else texts[0], {"user": f"{caller.group}"})
            busy = sum(each.body["user"] == f"{caller.group}" for each in upstream.in_flight if each.body is not None)
            asked = {text for each in upstream.calls for text in texts_of(each)}
            is_first = all(task.done() or texts_of(each)[0] in asked for task, each in zip(tasks, calls, strict=True))
            if busy < max_in_flight and is_first:
                idle_arrivals.append((texts[0], clock.now()))
            task = asyncio.create_task(stage.send(call))
            if caller.leaves_after_s is not None:
                asyncio.get_running_loop().call_later(caller.leaves_after_s, task.cancel)
            tasks.append(task)
            calls.append(call)
        outcomes = await settled(tasks)
        await asyncio.sleep(0)

        bills: dict[str, int] = {}
        for caller, call, outcome in zip(callers, calls, outcomes, strict=True):
            texts = texts_of(call)
            if isinstance(outcome, asyncio.CancelledError):
                assert caller.leaves_after_s is not None
            elif caller.is_bad:
                assert isinstance(outcome, Reply)
                assert outcome.status == 400
                assert texts[0].encode() in (outcome.body or b"")
            else:
                assert isinstance(outcome, Reply)
                assert vectors_of(outcome) == [vector(text) for text in texts]
                assert call.facts.usage is not None
                bills[texts[0]] = call.facts.usage.prompt_tokens
        _check_upstream(upstream, bills, max_batch)
        for text, at in idle_arrivals:
            asked_at = [
                when for each, when in zip(upstream.calls, upstream.sent_at, strict=True) if text in texts_of(each)
            ]
            assert not asked_at or asked_at[0] == at
        assert stage.batching_statistics() == NOTHING
        assert not upstream.in_flight

    in_virtual_time(scene)


def _check_upstream(upstream: SerialEmbedder, bills: dict[str, int], max_batch: int) -> None:
    """Batches are as large as they may be at most, and what they cost is what their callers are charged."""
    for call in upstream.calls:
        texts = texts_of(call)
        assert len(texts) <= max_batch
        assert len(set(texts)) == len(texts)
        firsts = [text for text in texts if text.split()[2] == "0"]
        if not any("poison" in text for text in texts) and all(first in bills for first in firsts):
            assert sum(bills[first] for first in firsts) == sum(map(tokens, texts))


def test_errors_are_copies_of_what_was_raised() -> None:
    """The message, the status and the time to wait are the upstream's."""

    async def scene(clock: VirtualClock) -> None:
        upstream = SerialEmbedder(clock)
        upstream.outcomes = [answer, Overloaded("full", retry_after_s=3.0)]
        outcomes = await _send_all(make_stage(upstream, clock), [embed("a"), embed("b"), embed("c")])

        for outcome in outcomes[1:]:
            assert isinstance(outcome, SlipstreamError)
            assert (outcome.message, outcome.retry_after_s) == ("full", 3.0)

    in_virtual_time(scene)

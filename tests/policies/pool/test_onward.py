"""Where a call can go on, what of that is the default, and what bounds it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from backends.errors import FirstTokenTimeout, TotalTimeout, UpstreamCut, UpstreamError, UpstreamRejectedKey
from backends.operations import Operation
from backends.protocol import Call, Reply, Timeouts
from backends.stream import Stream, StreamEnd
from policies.pool.attempts.patience import FLOOR_S
from policies.pool.attempts.settings import FallbacksPolicy, RetryPolicy
from policies.pool.fallback import Fallback, FallbackTarget
from policies.pool.member import Member
from policies.pool.onward import onward_of
from policies.pool.pool import Pool
from tests.support.calls import make_call, read_all
from tests.support.clock import FakeClock, settle
from tests.support.policy.pool import Outcome, Pieces, Played, error_reply, finish, make_pool

DEADLINE = 10_000.0
ON = FallbacksPolicy(routes=("other",)).on
SILENCE = {"on": ["first_token_timeout"]}
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
SAID = b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n'


def events(*pieces: bytes, error: UpstreamError | None = None) -> Reply:
    """A reply with a stream of events."""
    return Reply(200, [(b"content-type", b"text/event-stream")], stream=Stream(Pieces(*pieces, error=error)))


@pytest.mark.parametrize("outcome", [500, 502, UpstreamCut("x"), FirstTokenTimeout("x"), UpstreamRejectedKey("x"), 402])
async def test_pool_second_member_takes_over_by_default(clock: FakeClock, outcome: Outcome) -> None:
    """Nothing is configured but that there are two."""
    pool = make_pool([Played("a", outcome), Played("b")], clock)

    assert (await pool.send(make_call(deadline=DEADLINE))).body == b"b"


async def test_pool_what_may_be_paid_is_asked_once_more_at_most(clock: FakeClock) -> None:
    """With ten members that fail, two are asked."""
    backends = [Played(str(number), 500) for number in range(10)]
    reply = await make_pool(backends, clock, retry={"attempts": 9}).send(make_call(deadline=DEADLINE))

    assert reply.status == 500
    assert sum(len(backend.calls) for backend in backends) == 2


async def test_pool_same_backend_is_asked_again_only_with_a_fallback_behind_it(clock: FakeClock) -> None:
    """A 500 is mostly gone at the second time; who has written fallbacks wants an answer for a second payment."""
    asked = []
    for falls_back_on in ((), ON):
        backend = Played("only", 500, 200)
        pool = make_pool([backend], clock, falls_back_on=falls_back_on)
        reply = await finish(clock, pool.send(make_call(deadline=DEADLINE)))
        asked.append((reply.status, len(backend.calls)))

    assert asked == [(500, 1), (200, 2)]


@pytest.mark.parametrize("outcome", [FirstTokenTimeout("x"), UpstreamRejectedKey("x"), 504])
async def test_pool_who_would_fail_so_again_is_not_asked_again(clock: FakeClock, outcome: Outcome) -> None:
    """A silent backend stays silent; the fallback is next."""
    backend = Played("only", outcome, 200)
    fallback = Fallback(
        make_pool([backend], clock, falls_back_on=ON), [FallbackTarget("other", Played("other"), Timeouts())], ON, clock
    )
    reply = await fallback.send(make_call(deadline=DEADLINE))

    assert (reply.body, len(backend.calls)) == (b"other", 1)


async def test_pool_waits_of_a_call_that_can_fall_back_come_to_the_longest_one(clock: FakeClock) -> None:
    """Two waits of 3 s are more than `backoff.max`: it goes on after the first."""
    busy = [error_reply(429, retry_after="3") for _ in range(3)]
    backend = Played("only", *busy)
    pool = make_pool([backend], clock, falls_back_on=ON)
    began_at = clock.now()
    reply = await finish(clock, pool.send(make_call(deadline=DEADLINE)))

    assert (reply.status, len(backend.calls)) == (429, 2)
    assert clock.now() - began_at == pytest.approx(3.0, abs=0.1)


async def test_pool_passed_through_calls_are_repeated_only_where_nothing_was_done(clock: FakeClock) -> None:
    """A fine-tuning job that got a 500 may run."""
    for method, expected in (("POST", [0, 0, 1]), ("GET", [1, 1, 1])):
        asked = []
        for outcome in (500, UpstreamCut("x"), 503):
            first = Played("a", outcome, operations=frozenset({Operation.PASSTHROUGH}))
            second = Played("b", operations=frozenset({Operation.PASSTHROUGH}))
            pool = make_pool([Member(first), Member(second, priority=1)], clock)
            with suppress(UpstreamCut):
                await pool.send(make_call(operation=Operation.PASSTHROUGH, deadline=DEADLINE, method=method))
            asked.append(len(second.calls))
        assert asked == expected


async def test_pool_is_as_patient_with_a_call_that_acts_as_its_timeouts_say(clock: FakeClock) -> None:
    """Nobody takes over from who is silent, so the wait is not cut short for it; another call's is."""
    limits = []
    for extra in ({}, {"mcp_servers": [{"url": "https://mail.example/mcp"}]}):
        first = Played("a", 429)
        pool = make_pool([first, Played("b")], clock, falls_back_on=["timeout"])
        await pool.send(make_call(stream=True, extra=extra, deadline=DEADLINE))
        limits.append(first.calls[0].timeouts.first_token_s)

    assert limits == [pytest.approx(FLOOR_S, abs=0.1), Timeouts().first_token_s]


async def test_pool_list_of_ones_own_holds_as_written(clock: FakeClock) -> None:
    """Also for the same backend, as often as `attempts` says."""
    backend = Played("only", 500, 500, 200)
    pool = make_pool([backend], clock, retry={"on": ["500"]})

    assert (await finish(clock, pool.send(make_call(deadline=DEADLINE)))).status == 200


@pytest.mark.parametrize("pieces", [(), (ROLE,), (b": ping\n\n", ROLE, b": ping\n\n")])
async def test_pool_stream_that_dies_before_content_goes_on(clock: FakeClock, pieces: tuple[bytes, ...]) -> None:
    """Cut, or ended in good order: it has said nothing, it is closed, and counts against its backend."""
    dead = [events(*pieces, error=UpstreamCut("gone")), events(*pieces)]
    for reply in dead:
        good = events(ROLE, SAID)
        pool = make_pool([Played("a", reply), Played("b", good)], clock, breaker={"consecutive_failures": 1})

        assert await pool.send(make_call(stream=True, deadline=DEADLINE)) is good
        assert await read_all(good) == ROLE + SAID
        assert reply.stream is not None
        assert reply.stream.end in (StreamEnd.UPSTREAM_CUT, StreamEnd.ERROR)
        assert pool.breaker_states()["a"] == "open"


async def test_pool_with_nowhere_to_go_hands_the_head_on_at_once(clock: FakeClock) -> None:
    """Nothing is read of its stream, and the call is the client's own."""
    reply = events(ROLE, error=UpstreamCut("gone"))
    backend = Played("only", reply)
    call = make_call(stream=True, deadline=DEADLINE)

    assert await make_pool([backend], clock).send(call) is reply
    assert backend.calls[0] is call
    assert reply.stream is not None
    assert await reply.stream.read() == ROLE


async def test_pool_silence_is_limited_only_while_somebody_else_is_there(clock: FakeClock) -> None:
    """The last one to be asked gets all the patience of the policy."""
    first, second = Played("a", FirstTokenTimeout("x")), Played("b")
    await make_pool([Member(first), Member(second, priority=1)], clock).send(make_call(stream=True, deadline=DEADLINE))

    assert first.calls[0].timeouts.first_token_s == pytest.approx(FLOOR_S, abs=0.1)
    assert second.calls[0].timeouts == Timeouts(total_s=10.0)


async def test_pool_attempt_that_is_not_the_last_gets_half_of_the_time(clock: FakeClock) -> None:
    """A stream's first content, where that is less than its own limit; a whole answer only where the policy says so."""
    deadline = clock.now() + 8
    whole, begun, listed = Played("a"), Played("a"), Played("a")
    await make_pool([Member(whole), Member(Played("b"), priority=1)], clock).send(make_call(deadline=deadline))
    await make_pool([Member(listed), Member(Played("b"), priority=1)], clock, retry=SILENCE).send(
        make_call(deadline=deadline)
    )
    await make_pool([Member(begun), Member(Played("b"), priority=1)], clock).send(
        make_call(stream=True, deadline=deadline)
    )

    assert whole.calls[0].deadline == deadline
    assert listed.calls[0].deadline == clock.now() + 4
    assert begun.calls[0].deadline == deadline
    assert begun.calls[0].timeouts.first_token_s == 4


async def test_pool_answer_that_takes_more_than_its_half_is_silence(clock: FakeClock) -> None:
    """The next one is asked; were it the last, the client would be told what ran out."""

    async def late(_: Call) -> Reply:
        raise TotalTimeout("time is up")

    pool = make_pool([Member(Played("a", late)), Member(Played("b"), priority=1)], clock, retry=SILENCE)
    alone = make_pool([Played("a", late)], clock)

    assert (await pool.send(make_call(deadline=clock.now() + 8))).body == b"b"
    with pytest.raises(TotalTimeout):
        await alone.send(make_call(deadline=clock.now() + 8))


async def _silent(clock: FakeClock, call: Call) -> Reply:
    await clock.sleep(call.timeouts.first_token_s)
    raise FirstTokenTimeout("x")


async def test_pool_slow_backend_is_not_taken_out_by_calls_given_up_together(clock: FakeClock) -> None:
    """The limit was a guess, and all of them met the same one."""
    slow = Played("slow", partial(_silent, clock))
    pool = make_pool([Member(slow), Member(Played("b"), priority=1)], clock, breaker={"consecutive_failures": 5})
    calls = [asyncio.ensure_future(pool.send(make_call(stream=True, deadline=DEADLINE))) for _ in range(6)]
    await settle()
    await clock.advance(FLOOR_S + 0.1)

    assert [(await call).body for call in calls] == [b"b"] * 6
    assert pool.breaker_states()["slow"] == "closed"


async def test_pool_silent_backend_is_taken_out_by_calls_one_after_the_other(clock: FakeClock) -> None:
    """Five in a row have met five limits, each longer than the last."""
    silent = Played("silent", partial(_silent, clock))
    pool = make_pool([Member(silent), Member(Played("b"), priority=1)], clock, breaker={"consecutive_failures": 5})
    for _ in range(5):
        await finish(clock, pool.send(make_call(stream=True, deadline=DEADLINE)), limit_s=70)

    assert pool.breaker_states()["silent"] == "open"


async def test_pool_last_one_is_waited_for_though_its_fallbacks_were_asked(clock: FakeClock) -> None:
    """A fallback that has been asked is nobody to go on to; one that has not is."""
    limits = []
    for falls_back_to in (("other",), ("other", "third")):
        backend = Played("only")
        call = make_call(stream=True, deadline=DEADLINE)
        call.facts.asked_routes = {"first", "other"}
        await make_pool([backend], clock, falls_back_on=ON, falls_back_to=falls_back_to).send(call)
        limits.append(backend.calls[0].timeouts.first_token_s)

    assert limits == [make_call().timeouts.first_token_s, pytest.approx(FLOOR_S, abs=0.1)]


async def test_pool_lone_backend_with_a_fallback_may_be_out(clock: FakeClock) -> None:
    """While it rests, calls go on at once instead of waiting for it to fail again."""
    states = []
    for falls_back_on in ((), ON):
        pool = make_pool([Played("only", 503)], clock, falls_back_on=falls_back_on, breaker={"consecutive_failures": 2})
        await finish(clock, pool.send(make_call(deadline=DEADLINE)))
        states.append(pool.breaker_states()["only"])

    assert states == ["closed", "open"]


def test_onward_no_attempts_means_none() -> None:
    """`attempts: 0` turns off what the pool asks again; fallbacks stay."""
    onward = onward_of(RetryPolicy(attempts=0), 2, ON)

    assert onward.retry_on == frozenset()
    assert onward.holds_back
    assert not onward.asks_others_on_silence


async def test_pool_answer_without_choices_goes_on(clock: FakeClock) -> None:
    """It is JSON, it is 200, and it says nothing."""
    empty = Reply(200, [], body=b'{"choices":[]}')
    pool: Pool = make_pool([Played("a", empty), Played("b")], clock)

    assert (await pool.send(make_call(deadline=DEADLINE))).body == b"b"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":0,"total_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "in pieces"])
@pytest.mark.parametrize("said", [(DONE,), (b": ping\n\n", USAGE, DONE)], ids=["end", "usage"])
async def test_pool_stream_without_any_choice_goes_on_as_a_whole_answer_without_does(
    clock: FakeClock, said: tuple[bytes, ...], at_once: bool
) -> None:
    """Else a server that says nothing would be the fastest of all."""
    empty = events(*((b"".join(said),) if at_once else said))
    pool = make_pool([Played("a", empty), Played("b", events(ROLE, SAID, DONE))], clock)
    reply = await pool.send(make_call(stream=True, deadline=DEADLINE))

    assert await read_all(reply) == ROLE + SAID + DONE
    assert empty.stream is not None
    assert empty.stream.end is StreamEnd.ERROR


async def test_pool_stream_with_an_empty_choice_is_an_answer(clock: FakeClock) -> None:
    """A model may have nothing to say."""
    quiet, other = events(ROLE, DONE), Played("b")
    pool = make_pool([Played("a", quiet), other], clock)

    assert await read_all(await pool.send(make_call(stream=True, deadline=DEADLINE))) == ROLE + DONE
    assert other.calls == []

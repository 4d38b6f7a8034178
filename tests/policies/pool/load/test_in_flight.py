"""Counting what backends have in hand: nothing drifts, however attempts go out, move on and end."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.charges.usage import Usage
from backends.errors import ConnectFailed, UpstreamCut
from backends.protocol import Backend, Call, Reply
from backends.stream import Stream, StreamEnd
from policies.pool.attempts.settings import RetryPolicy
from policies.pool.balance.pick import PickerCounters
from policies.pool.load.demand import Demand
from policies.pool.load.in_flight import InFlight, InFlightAttempt
from policies.pool.load.latency_model import features
from policies.pool.load.match import Match
from policies.pool.load.replica import Replica
from policies.pool.load.routing import Routing
from policies.pool.member import Member
from policies.pool.pool import Pool
from policies.pool.prompts.prefix_index import PrefixIndex
from policies.pool.settings import CircuitBreakerPolicy
from tests.support.calls import make_call
from tests.support.clock import FakeClock, settle
from tests.support.policy.places import depths
from tests.support.policy.pool import Pieces, Played, StoppedClock, error_reply

X = (0, 1, 1, 0, 0, 0)
IDLE = (0, 0, 0, 0, 0)


def _counts(load: InFlight) -> tuple[int, int, int, int, int]:
    return load.requests, load.waiting_tokens, load.whole_tokens, load.decoding, load.held_tokens


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["first", "end"])), max_size=60),
)
def test_in_flight_any_interleaving_ends_at_zero(
    prompts: list[tuple[int, bool]], events: list[tuple[int, str]]
) -> None:
    """First tokens and ends in any order, repeated, too late or never: counters are those of the attempts still out."""
    load = InFlight()
    attempts = [InFlightAttempt(load, tokens, tokens + 7, is_stream, X, 0.0) for tokens, is_stream in prompts]
    waiting = {place for place, (_, is_stream) in enumerate(prompts) if is_stream}
    out = set(range(len(prompts)))
    for place, event in events:
        place %= len(attempts)
        if event == "first":
            attempts[place].first_token(1.0)
        else:
            attempts[place].end()
            out.discard(place)
        waiting.discard(place)
        assert _counts(load) == (
            len(out),
            sum(prompts[each][0] for each in out & waiting),
            sum(prompts[each][0] for each in out if not prompts[each][1]),
            len(out - waiting),
            sum(prompts[each][0] + 7 for each in out),
        )
    for attempt in attempts:
        attempt.end()

    assert _counts(load) == IDLE


def test_attempt_first_token_after_its_end_counts_nothing() -> None:
    """A leaf that speaks after it was told to stop is not heard."""
    load = InFlight()
    attempt = InFlightAttempt(load, 5, 9, True, X, 0.0)
    attempt.end()
    attempt.first_token(1.0)

    assert attempt.first_at is None
    assert _counts(load) == IDLE


def _replica(clock: StoppedClock | FakeClock) -> Replica:
    return Replica("r", 100_000, PrefixIndex(), clock)


async def _ask(replica: Replica, backend: Backend, call: Call) -> Reply:
    """Through a pool of which it is the only member."""
    pool = Pool(
        "r",
        [Member(backend)],
        retry=RetryPolicy(attempts=0),
        breaker=CircuitBreakerPolicy(),
        clock=StoppedClock(),
        random=Random(1),
        routing=Routing([replica], PrefixIndex(), picker=None, counters=PickerCounters(), wants_blocks=False),
    )
    return await pool.send(call)


def _call(*, stream: bool = True, tokens: int = 100) -> Call:
    return make_call(raw=b"x" * 4 * tokens, body=None, stream=stream)


def _stream(*pieces: bytes, error: UpstreamCut | None = None) -> Reply:
    return Reply(200, [], stream=Stream(Pieces(*pieces, error=error)))


async def _drain(reply: Reply) -> None:
    assert reply.stream is not None
    while await reply.stream.read():
        pass


async def test_replica_counts_a_stream_from_its_going_out_to_its_end(clock: FakeClock) -> None:
    """Waiting, then decoding, then nothing; and what it took is learned."""
    replica = _replica(clock)
    seen = []

    async def answer(call: Call) -> Reply:
        seen.append(_counts(replica.in_flight))
        await clock.sleep(0.5)
        return _stream(b"data: 1\n\n")

    call = _call()
    task = asyncio.ensure_future(_ask(replica, Played("a", answer), call))
    await clock.advance(0.5)
    reply = await task
    seen.append(_counts(replica.in_flight))
    call.facts.usage = Usage(100, 11)
    await clock.advance(1.0)
    await _drain(reply)

    assert seen == [(1, 100, 0, 0, 356), (1, 0, 0, 1, 356)]
    assert _counts(replica.in_flight) == IDLE
    assert replica.model.num_observations == 1
    assert replica.model.seconds_between_tokens == pytest.approx(0.1)
    assert replica.model.output_tokens < 256


async def test_replica_believes_the_leaf_about_the_first_token(clock: FakeClock) -> None:
    """A leaf that notes the moment knows better than the moment its reply is read; an older note is not believed."""
    replica = _replica(clock)
    times: list[int] = []

    async def answer(call: Call) -> Reply:
        call.facts.first_token_at = clock.now() + 0.25 if len(times) == 0 else 1.0
        return _stream(b"data: 1\n\n")

    for _ in range(2):
        attempt = replica.begin(Match(Demand(10, is_stream=True)), clock.now())
        attempt.end()
        reply = await _ask(replica, Played("a", answer), _call())
        times.append(replica.model.num_observations)
        await reply.aclose()

    assert times == [1, 2]
    assert replica.model.num_nonsense == 0


@pytest.mark.parametrize(
    "outcome",
    [200, 429, 503, ConnectFailed("refused"), error_reply(400), _stream(b"a", error=UpstreamCut("cut"))],
    ids=["whole", "full", "down", "unreachable", "refused", "cut"],
)
async def test_replica_every_outcome_gives_back_what_it_counted(outcome: int | Reply | ConnectFailed) -> None:
    """Whole answers, errors of either kind, streams that break."""
    replica = _replica(StoppedClock())
    try:
        reply = await _ask(replica, Played("a", outcome), _call())
        if reply.stream is not None:
            await _drain(reply)
    except (ConnectFailed, UpstreamCut):
        pass

    assert _counts(replica.in_flight) == IDLE
    assert replica.model.num_observations == (1 if isinstance(outcome, Reply) and outcome.stream is not None else 0)


def test_replica_prompt_grows_old_from_the_end_of_its_call_on() -> None:
    """Until then it stays, whatever else passes; an end that is told twice counts once where two share a beginning."""
    index = PrefixIndex()
    replica = Replica("r", 192, index, StoppedClock())

    def begin(*blocks: int) -> InFlightAttempt:
        ends = [64 * (place + 1) for place in range(len(blocks))]
        return replica.begin(Match(Demand(ends[-1], is_stream=True, blocks=blocks, ends=ends)), 0.0)

    first, second = begin(1, 2), begin(1)
    for block in (7, 8):
        begin(block).end()
    first.end()
    first.end()
    during = depths(index, [1, 2])
    for block in (7, 8):
        begin(block).end()
    after_one = depths(index, [1, 2])
    second.end()
    for block in (7, 8, 9):
        begin(block).end()

    assert (during, after_one) == ({replica.slot: 2}, {replica.slot: 1})
    assert depths(index, [1]) == {}


@pytest.mark.parametrize("is_stream", [True, False])
async def test_replica_cancelled_while_it_waits_gives_back_what_it_counted(clock: FakeClock, is_stream: bool) -> None:
    """A client that leaves before the first token."""
    replica = _replica(clock)

    async def never(call: Call) -> Reply:
        await clock.sleep(1e6)
        raise AssertionError("not reached")

    task = asyncio.ensure_future(_ask(replica, Played("a", never), _call(stream=is_stream)))
    await settle()
    during = replica.in_flight.requests
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert during == 1
    assert _counts(replica.in_flight) == IDLE


async def test_replica_closed_stream_gives_back_what_it_counted() -> None:
    """A client that leaves in the middle; the half answer teaches nothing about lengths."""
    replica = _replica(StoppedClock())
    call = _call()
    reply = await _ask(replica, Played("a", _stream(b"a", b"b")), call)
    assert reply.stream is not None
    call.facts.usage = Usage(10, 3)
    await reply.stream.aclose(StreamEnd.CLIENT_GONE)
    await reply.aclose()

    assert _counts(replica.in_flight) == IDLE
    assert replica.model.output_tokens == 256


async def test_replica_stream_that_is_over_already_gives_back_what_it_counted() -> None:
    """Nobody would be told of its end any more."""
    replica = _replica(StoppedClock())
    over = _stream(b"a")
    await over.aclose()
    await _ask(replica, Played("a", over), _call())

    assert _counts(replica.in_flight) == IDLE


def test_replica_learns_from_fifty_first_tokens_a_second() -> None:
    """And from a hundred at once: of a thousand a second the rest would teach nothing but cost the same."""
    replica = _replica(StoppedClock())

    def begin_streams(number: int, now: float) -> int:
        for _ in range(number):
            attempt = replica.begin(Match(Demand(10, is_stream=True)), now)
            replica.first_token(attempt, now)
            attempt.end()
        return replica.model.num_observations

    assert begin_streams(500, 10.0) == 100
    assert begin_streams(500, 10.125) == 106
    assert begin_streams(10, 11.0) == 116
    assert begin_streams(500, 100.0) == 216


@given(st.data())
def test_replica_prediction_is_that_of_its_features(data: st.DataObject) -> None:
    """The short way, which balancing takes, gives what the model's own way gives."""
    replica = _replica(StoppedClock())
    for number in range(data.draw(st.integers(1, 30))):
        demand = Demand(data.draw(st.integers(1, 200_000)), is_stream=data.draw(st.booleans()))
        attempt = replica.begin(Match(demand), 0.0)
        if number % 3:
            replica.first_token(attempt, data.draw(st.floats(0, 100)))
        if number % 5 == 0:
            attempt.end()
    tokens = data.draw(st.integers(1, 200_000))
    predicted_s = replica.predict(tokens, tokens)
    met = replica.begin(Match(Demand(tokens, is_stream=True)), 0.0).met

    assert predicted_s == pytest.approx(replica.model.predict(features(*met)), rel=1e-9, abs=1e-9)


async def test_replica_judges_a_start_by_what_was_cached_when_it_went_out(clock: FakeClock) -> None:
    """That a hedge of the same call finds its prompt cached by now does not make the first attempt late."""
    replica = _replica(clock)
    demand = Demand(10_000, True, blocks=(1,), ends=(9_984,))
    attempt = replica.begin(Match(demand), clock.now())
    alone_s = replica.predict_alone(10_000, 10_000)
    attempt.limit_s = alone_s
    limit = replica.concurrency_limit.limit
    call = _call()
    call.facts.sent_at, call.facts.first_token_at = attempt.sent_at, attempt.sent_at + alone_s

    replica.begin(Match(demand, [(1 << replica.slot, 1)]), clock.now())
    reply = _stream(b"data: 1\n\n")
    replica.answered(attempt, reply, call)
    await reply.aclose()

    assert alone_s > 2 * replica.predict_alone(10_000, 16)
    assert replica.concurrency_limit.limit >= limit

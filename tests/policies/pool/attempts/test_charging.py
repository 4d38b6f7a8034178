"""What an attempt is charged, however it ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.charges.usage import Usage
from backends.errors import ConnectFailed, FirstTokenTimeout, UpstreamCut
from backends.operations import Metering, Operation, Terms
from backends.protocol import Call, Reply
from gateway.simulate.virtual_loop import VirtualClock, VirtualLoop
from policies.pool.attempts.charging import seen_tokens
from policies.pool.member import Member
from policies.prices.price import Price, Tariff, named_price, per_token
from tests.support.calls import make_call, read_all
from tests.support.clock import FakeClock, settle
from tests.support.policy.hedged import EXPECTED_S, Hedged
from tests.support.policy.pool import Played, error_reply, make_pool, stream_reply


def _call(clock: FakeClock | VirtualClock, *, num_bytes: int = 400, stream: bool = False) -> Call:
    return make_call(raw=b"x" * num_bytes, stream=stream, deadline=clock.now() + 1000.0)


def _charged(call: Call) -> list[tuple[str, Usage | None, bool]]:
    charges = call.facts.charges or []
    assert all(charge.is_settled for charge in charges)
    return [(charge.backend, charge.usage, charge.is_estimated) for charge in charges]


class Sending(Played):
    """Says when it has sent the call, as leaves do, and what a whole answer used."""

    def __init__(
        self, name: str, clock: FakeClock | VirtualClock, *outcomes: object, usage: Usage | None = None
    ) -> None:
        super().__init__(name, *outcomes)  # type: ignore[arg-type]  # as `Played` takes them
        self._clock = clock
        self._usage = usage

    async def send(self, call: Call) -> Reply:
        """As `Played`, a call that has gone out."""
        call.facts.sent_at = self._clock.now() + 1e-6 * call.facts.attempts
        reply = await super().send(call)
        if reply.status < 400:
            call.facts.usage = self._usage
        return reply


@pytest.mark.parametrize("stream", [False, True])
async def test_charge_of_an_answer_without_usage_is_estimated(clock: FakeClock, stream: bool) -> None:
    """From the bytes of the prompt, and of the answer, in the tier that was asked for."""
    reply = stream_reply(*[b"data: " + b"e" * 100 + b"\n\n"] * 6) if stream else Reply(200, [], body=b"y" * 40)
    asked = _call(clock, stream=stream)
    call = msgspec.structs.replace(asked, body={**(asked.body or {}), "service_tier": "fast"})
    answer = await make_pool([Sending("a", clock, reply)], clock).send(call)
    if stream:
        await read_all(answer)

    assert _charged(call) == [("a", Usage(100, 5 if stream else 10, service_tier="fast"), True)]


@pytest.mark.parametrize(
    ("failure", "is_owed"),
    [
        (ConnectFailed("no"), False),
        (error_reply(400), False),
        (error_reply(500), False),
        (UpstreamCut("gone"), True),
        (FirstTokenTimeout("late"), True),
    ],
)
async def test_charge_of_a_failure_is_the_prompt_where_a_model_may_have_read_it(
    clock: FakeClock, failure: object, is_owed: bool
) -> None:
    """An error is no answer, and nobody bills one."""
    call = _call(clock)
    pool = make_pool([Sending("a", clock, failure)], clock, retry={"attempts": 0})
    if isinstance(failure, Reply):
        await pool.send(call)
    else:
        with pytest.raises(type(failure)):  # type: ignore[arg-type]  # an exception, if no reply
            await pool.send(call)

    assert _charged(call) == [("a", Usage(100, 0) if is_owed else None, is_owed)]


async def test_charge_of_a_call_that_is_cancelled_is_its_prompt_and_what_was_written_unseen(clock: FakeClock) -> None:
    """Of a whole answer about what its model had the time for, and no more than was asked for; unsent it is nothing."""

    async def never(call: Call) -> Reply:
        await clock.sleep(1e6)
        raise AssertionError("not reached")

    charged = []
    for leaf, seconds, fields in (
        (Sending("a", clock, never), 0.0, {}),
        (Sending("a", clock, never), 10.0, {}),
        (Sending("a", clock, never), 10.0, {"max_tokens": 30, "n": 2}),
        (Sending("a", clock, never), 1000.0, {}),
        (Played("a", never), 10.0, {}),
    ):
        call = _call(clock)
        call = msgspec.structs.replace(call, body={**(call.body or {}), **fields}, deadline=clock.now() + 2000.0)
        task = asyncio.ensure_future(make_pool([leaf], clock).send(call))
        await settle()
        await clock.advance(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        charged += _charged(call)

    written = [usage.completion_tokens if usage is not None else None for _, usage, _ in charged]
    assert written == [0, 500, 60, 4096, None]
    assert {usage.prompt_tokens for _, usage, _ in charged if usage is not None} == {100}


async def test_charge_of_a_retry_does_not_inherit_what_the_attempt_before_it_used(clock: FakeClock) -> None:
    """Each of the two is its own."""

    async def told(call: Call) -> Reply:
        call.facts.usage = Usage(7, 7)
        raise UpstreamCut("gone")

    first, second = Sending("a", clock, told), Sending("b", clock, UpstreamCut("gone"))
    call = _call(clock, stream=True)
    pool = make_pool([first, second], clock, retry={"attempts": 1})
    with pytest.raises(UpstreamCut):
        await pool.send(call)

    assert _charged(call) == [("a", Usage(7, 7), False), ("b", Usage(100, 0), True)]


async def test_charge_of_an_answer_that_broke_off_counts_what_came_since_its_upstream_told(clock: FakeClock) -> None:
    """The Messages API tells a prompt exactly, and one token of an answer, before it begins."""

    async def begins(call: Call) -> Reply:
        call.facts.usage, call.facts.is_usage_partial = Usage(700, 1, 600), True
        return stream_reply(*[b"data: " + b"e" * 100 + b"\n\n"] * 6)

    call = _call(clock, stream=True)
    await read_all(await make_pool([Played("a", begins)], clock).send(call))

    assert _charged(call) == [("a", Usage(700, 5, 600), True)]


@pytest.mark.parametrize(
    ("terms", "told", "charged", "cost"),
    [
        (Terms(Metering.FLAT, 15), None, (Usage(), False), 15),
        (Terms(Metering.FLAT, 15), Usage(7, 7), (Usage(7, 7), False), 15),
        (Terms(Metering.FREE), None, (None, False), 0),
        (Terms(Metering.METERED), Usage(7, 7), (Usage(7, 7), False), None),
        (Terms(Metering.METERED), None, (Usage(100, 0), True), None),
        (Terms(Metering.METERED, writes_text=True), None, (Usage(100, 10), True), None),
        (Terms(Metering.METERED, is_free_untold=True), None, (None, False), 0),
        (Terms(Metering.UNMETERED), Usage(7, 7), (Usage(7, 7), False), None),
        (Terms(Metering.UNMETERED), None, (None, True), None),
    ],
)
async def test_charge_of_a_call_that_passes_is_by_its_terms(
    clock: FakeClock, terms: Terms, told: Usage | None, charged: tuple[Usage | None, bool], cost: int | None
) -> None:
    """A flat price whatever it used; what is told counts; what is not told is estimated, free, or unknown.

    Nobody has said what a token costs.
    """
    call = make_call(raw=b"x" * 400, operation=Operation.PASSTHROUGH, terms=terms, deadline=clock.now() + 1000.0)
    await read_all(await make_pool([Sending("a", clock, stream_reply(b"y" * 40), usage=told)], clock).send(call))

    (charge,) = call.facts.charges or ()
    assert (charge.usage, charge.is_estimated) == charged
    assert charge.cost == cost


@pytest.mark.parametrize("failure", [error_reply(429), error_reply(500), ConnectFailed("no")])
async def test_charge_of_a_flat_price_is_for_answers(clock: FakeClock, failure: Reply | Exception) -> None:
    """Who is refused pays nothing."""
    terms = Terms(Metering.FLAT, 15)
    call = make_call(operation=Operation.PASSTHROUGH, terms=terms, deadline=clock.now() + 1000.0)
    pool = make_pool([Sending("a", clock, failure)], clock, retry={"attempts": 0})
    with suppress(ConnectFailed):
        await pool.send(call)

    assert [charge.cost for charge in call.facts.charges or ()] == [0]


async def test_charge_of_what_goes_on_in_the_background_is_unknown(clock: FakeClock) -> None:
    """The answer comes before the work: its length says nothing."""
    call = make_call(operation=Operation.RESPONSES, extra={"background": True}, deadline=clock.now() + 1000.0)
    await make_pool([Sending("a", clock, Reply(200, [], body=b"y" * 40))], clock).send(call)

    assert _charged(call) == [("a", None, True)]


class ByModel:
    """A list that knows two models."""

    def of(self, model: str) -> Price | None:
        """A pico-dollar a token, or two."""
        each = {"m": 1, "m-mini": 2}.get(model)
        return None if each is None else named_price(model, Tariff(per_token(each, each)))


class Serving(Sending):
    """Answers with a model of its own choice."""

    served = ""

    async def send(self, call: Call) -> Reply:
        """As `Sending`."""
        reply = await super().send(call)
        call.facts.upstream_model = self.served
        return reply


@pytest.mark.parametrize(
    ("fields", "served", "cost"),
    [
        ({"models": ["m-mini"]}, "m-mini", 220),
        ({"fallbacks": [{"model": "m-mini"}]}, "m-mini", 220),
        ({"models": ["other"]}, "other", None),
        ({"models": ["other"]}, "m-2026-11-01", 110),
        ({}, "m-mini", 110),
    ],
)
async def test_charge_of_a_call_that_names_further_models_is_for_the_one_that_answers(
    clock: FakeClock, fields: dict[str, object], served: str, cost: int | None
) -> None:
    """Unknown where nobody knows its price; a longer spelling of the first is the first."""
    member = Serving("a", clock, Reply(200, [], body=b"y"), usage=Usage(100, 10))
    member.served = served
    asked = _call(clock)
    call = msgspec.structs.replace(asked, model="m", body={**(asked.body or {}), **fields})
    await make_pool([Member(member, prices=ByModel())], clock).send(call)

    (charge,) = call.facts.charges or ()
    assert charge.cost == cost


def test_charge_of_a_hedge_is_the_calls_too() -> None:
    """Both attempts: what the second used, and what the first had read and could have written when it was given up."""
    loop = VirtualLoop()
    clock = VirtualClock(loop)

    async def late(call: Call) -> Reply:
        await clock.sleep(100 * EXPECTED_S)
        raise AssertionError("it is given up before")

    hedged = Hedged([Sending("slow", clock, late), Sending("quick", clock, usage=Usage(9, 3))], clock)
    hedged.teach()
    call = _call(clock)
    loop.run_until_complete(hedged.pool.send(call))
    loop.close()

    assert sorted(_charged(call), key=str) == [("quick", Usage(9, 3), False), ("slow", Usage(100, 5), True)]


@given(num_words=st.integers(0, 2000), word=st.binary(min_size=2, max_size=6), overhead=st.integers(100, 400))
def test_charge_of_a_stream_is_about_a_token_for_each_event(num_words: int, word: bytes, overhead: int) -> None:
    """Whatever surrounds the text; none before anything has come."""
    role, event = b"data: " + b"x" * overhead + b"\n\n", b"data: " + b"x" * overhead + word + b"\n\n"

    assert seen_tokens(role, len(role) + num_words * len(event)) == pytest.approx(num_words, rel=0.03, abs=1)
    assert seen_tokens(b"", 0) == seen_tokens(b"data: cut", 9) == 0

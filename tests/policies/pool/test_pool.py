"""A pool's attempts: who is asked, what is retried, when it waits, what the client gets in the end."""

from __future__ import annotations

import asyncio

import pytest

from backends.errors import (
    ConnectFailed,
    FirstTokenTimeout,
    InvalidRequest,
    NoBackendAvailable,
    UpstreamCut,
)
from backends.operations import Operation
from backends.protocol import Reply
from backends.stream import StreamEnd
from policies.pool.member import Member
from tests.support.calls import make_call, read_all
from tests.support.clock import FakeClock, settle
from tests.support.policy.pool import Played, error_reply, finish, make_pool, stream_reply

DEADLINE = 10_000.0
NO_JITTER = {"initial": "100ms", "max": "5s", "jitter": 0}


async def test_pool_one_member_passes_the_call_through(clock: FakeClock) -> None:
    """Nothing to rename: the very same call goes down, and the facts say who answered."""
    backend = Played("only")
    call = make_call(deadline=DEADLINE)
    reply = await make_pool([backend], clock).send(call)

    assert reply.body == b"only"
    assert backend.calls[0] is call
    assert (call.facts.attempts, call.facts.backend, call.facts.upstream_model) == (1, "only", "test-model")


async def test_pool_member_with_a_model_gets_that_model(clock: FakeClock) -> None:
    """The rename is in the call's model; body and bytes are left to the leaf."""
    backend = Played("a")
    call = make_call(deadline=DEADLINE)
    await make_pool([Member(backend, model="llama")], clock).send(call)

    assert backend.calls[0].model == "llama"
    assert backend.calls[0].raw is call.raw
    assert call.model == "test-model"
    assert call.facts.upstream_model == "llama"


async def test_pool_member_with_the_same_model_copies_nothing(clock: FakeClock) -> None:
    """A rename to the name it already has is none."""
    backend = Played("a")
    call = make_call(deadline=DEADLINE)
    await make_pool([Member(backend, model="test-model")], clock).send(call)

    assert backend.calls[0] is call


async def test_pool_retry_prefers_another_member_without_waiting(clock: FakeClock) -> None:
    """A failed connection goes to the other member at once."""
    down, up = Played("down", ConnectFailed("refused")), Played("up")
    call = make_call(deadline=DEADLINE)
    reply = await make_pool([down, up], clock).send(call)

    assert reply.body == b"up"
    assert (call.facts.attempts, call.facts.backend) == (2, "up")
    assert len(down.calls) == 1


async def test_pool_rate_limited_member_leaves_the_call_to_another(clock: FakeClock) -> None:
    """A long Retry-After binds only the member that asked for it."""
    full, free = Played("full", error_reply(429, retry_after="3600")), Played("free")

    reply = await make_pool([full, free], clock).send(make_call(deadline=DEADLINE))

    assert reply.body == b"free"


async def test_pool_lone_member_is_retried_after_the_backoff(clock: FakeClock) -> None:
    """With nobody else to ask, the same backend is asked again when the backoff is over, and not before."""
    backend = Played("only", ConnectFailed("refused"), ConnectFailed("refused"), 200)
    pool = make_pool([backend], clock, retry={"backoff": NO_JITTER})
    task = asyncio.ensure_future(pool.send(make_call(deadline=DEADLINE)))
    seen = []
    for seconds in (0.0, 0.099, 0.002, 0.197, 0.003):
        await clock.advance(seconds)
        seen.append(len(backend.calls))

    assert seen == [1, 1, 2, 2, 3]
    assert (await task).status == 200
    assert pool.retry_statistics().retries == 2


async def test_pool_retry_waits_as_long_as_the_upstream_asks(clock: FakeClock) -> None:
    """A Retry-After within backoff.max is kept to."""
    backend = Played("only", error_reply(429, retry_after="2"), 200)
    task = asyncio.ensure_future(make_pool([backend], clock).send(make_call(deadline=DEADLINE)))
    await clock.advance(1.99)
    early = len(backend.calls)
    await clock.advance(0.02)

    assert early == 1
    assert (await task).status == 200


@pytest.mark.parametrize("retry_after", ["6", "1000000000", "9" * 400])
async def test_pool_retry_after_over_the_limit_goes_to_the_client(clock: FakeClock, retry_after: str) -> None:
    """A wait longer than backoff.max is the client's to make: the answer comes at once, header included."""
    answer = error_reply(429, retry_after=retry_after)
    backend = Played("only", answer)

    reply = await finish(clock, make_pool([backend], clock).send(make_call(deadline=DEADLINE)), limit_s=0.1)

    assert reply is answer
    assert reply.header(b"retry-after") == retry_after.encode()
    assert len(backend.calls) == 1


async def test_pool_retry_after_beyond_the_deadline_goes_to_the_client(clock: FakeClock) -> None:
    """No attempt is planned for a time when the call is over."""
    backend = Played("only", error_reply(503, retry_after="3"), 200)

    pool = make_pool([backend], clock)
    reply = await finish(clock, pool.send(make_call(deadline=clock.now() + 3)), limit_s=0.1)

    assert (reply.status, len(backend.calls)) == (503, 1)


@pytest.mark.parametrize("retry_after", ["-1", "soon", "1000000000"])
async def test_pool_retry_after_garbage_or_not_respected_means_the_own_backoff(
    clock: FakeClock, retry_after: str
) -> None:
    """A header that says nothing, or is not to be listened to, changes nothing."""
    backend = Played("only", error_reply(429, retry_after=retry_after), 200)
    pool = make_pool([backend], clock, retry={"respect_retry_after": False})

    reply = await finish(clock, pool.send(make_call(deadline=DEADLINE)), limit_s=0.3)

    assert reply.status == 200


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_pool_4xx_is_an_answer(clock: FakeClock, status: int) -> None:
    """The client's error is passed on as it is, whoever else could be asked, and is no mark against the backend."""
    pool = make_pool(
        [Played("a", status), Played("b", status)],
        clock,
        breaker={"consecutive_failures": 1, "max_ejection_percent": 100},
    )
    replies = [await pool.send(make_call(deadline=DEADLINE)) for _ in range(4)]

    assert [reply.status for reply in replies] == [status] * 4
    assert pool.retry_statistics().retries == 0
    assert set(pool.breaker_states().values()) == {"closed"}


@pytest.mark.parametrize("outcome", [500, UpstreamCut("gone"), FirstTokenTimeout("slow")])
async def test_pool_what_may_have_reached_a_model_is_not_retried_where_nobody_else_is(
    clock: FakeClock, outcome: int | UpstreamCut | FirstTokenTimeout
) -> None:
    """Such a retry of the same backend can cost twice, so the policy has to ask for it."""
    backend = Played("a", outcome, 200)
    parked = Played("b")
    pool = make_pool([Member(backend), Member(parked, weight=0)], clock)

    if isinstance(outcome, int):
        assert (await pool.send(make_call(deadline=DEADLINE))).status == outcome
    else:
        with pytest.raises(type(outcome)) as raised:
            await pool.send(make_call(deadline=DEADLINE))
        assert raised.value is outcome
    assert (len(backend.calls), parked.calls) == (1, [])


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (500, "500"),
        (408, "408"),
        (529, "529"),
        (UpstreamCut("x"), "upstream_cut"),
        (FirstTokenTimeout("x"), "first_token_timeout"),
    ],
)
async def test_pool_listed_failures_are_retried(
    clock: FakeClock, outcome: int | UpstreamCut | FirstTokenTimeout, reason: str
) -> None:
    """What `retry.on` names gets another attempt."""
    pool = make_pool([Played("a", outcome), Played("b")], clock, retry={"on": [reason]})

    assert (await pool.send(make_call(deadline=DEADLINE))).body == b"b"


async def test_pool_context_window_is_not_retried_though_its_status_is_listed(clock: FakeClock) -> None:
    """The same prompt is too long on every replica."""
    backend = Played("a", error_reply(500, "prompt is too long: 9 tokens > 8 maximum"), 200)

    reply = await make_pool([backend], clock, retry={"on": ["500"]}).send(make_call(deadline=DEADLINE))

    assert reply.status == 500


async def test_pool_last_error_reply_is_returned_as_it_is(clock: FakeClock) -> None:
    """Out of attempts: the upstream's own last answer."""
    answers = [error_reply(503), error_reply(503), error_reply(503)]
    backend = Played("only", *answers)
    pool = make_pool([backend], clock, retry={"attempts": 2})
    reply = await finish(clock, pool.send(make_call(deadline=DEADLINE)))

    assert reply is answers[2]
    assert pool.retry_statistics().retries_exhausted == 1
    assert pool.statistics().failed == 1


async def test_pool_last_error_is_raised_after_all_were_tried(clock: FakeClock) -> None:
    """Out of attempts: the last backend's error."""
    errors = [ConnectFailed("a"), ConnectFailed("b")]
    pool = make_pool([Played("a", errors[0]), Played("b", errors[1])], clock, retry={"attempts": 1})

    with pytest.raises(ConnectFailed) as raised:
        await pool.send(make_call(deadline=DEADLINE))

    assert raised.value is errors[1]


async def test_pool_retries_turned_off_asks_once(clock: FakeClock) -> None:
    """`attempts: 0` means one attempt, and nothing counts as exhausted."""
    backend = Played("a", 503)
    pool = make_pool([backend], clock, retry={"attempts": 0})
    await pool.send(make_call(deadline=DEADLINE))

    assert len(backend.calls) == 1
    assert pool.retry_statistics().retries_exhausted == 0


async def test_pool_failed_reply_is_closed_before_the_next_attempt(clock: FakeClock) -> None:
    """A failed reply's stream is released when its successor is asked."""
    failed = stream_reply(b"busy", status=503)
    pool = make_pool([Played("a", failed), Played("b")], clock)
    await pool.send(make_call(deadline=DEADLINE))

    assert failed.stream is not None
    assert failed.stream.end is StreamEnd.CLIENT_GONE


async def test_pool_final_failed_reply_stays_open(clock: FakeClock) -> None:
    """What goes to the client can still be read."""
    pool = make_pool([Played("a", stream_reply(b"bu", b"sy", status=503))], clock, retry={"attempts": 0})

    assert await read_all(await pool.send(make_call(deadline=DEADLINE))) == b"busy"


async def test_pool_started_stream_is_never_retried(clock: FakeClock) -> None:
    """Once a reply below 400 is there, its later cut is the client's to see."""
    spare = Played("b")
    pool = make_pool(
        [Member(Played("a", stream_reply(b"one", error=UpstreamCut("gone")))), Member(spare, priority=1)],
        clock,
        retry={"on": ["upstream_cut"]},
    )
    reply = await pool.send(make_call(stream=True, deadline=DEADLINE))

    with pytest.raises(UpstreamCut):
        await read_all(reply)
    assert spare.calls == []


async def test_pool_streams_that_are_cut_open_the_breaker(clock: FakeClock) -> None:
    """Good heads do not hide that no stream comes to its end; clients that leave say nothing."""

    async def cut(_: object) -> Reply:
        return stream_reply(b"one", error=UpstreamCut("gone"))

    pool = make_pool([Played("a", cut)], clock, breaker={"consecutive_failures": 3, "max_ejection_percent": 100})
    for _ in range(5):
        await (await pool.send(make_call(stream=True, deadline=DEADLINE))).aclose()
    before = pool.breaker_states()
    for _ in range(3):
        with pytest.raises(UpstreamCut):
            await read_all(await pool.send(make_call(stream=True, deadline=DEADLINE)))

    assert before == {"a": "closed"}
    assert pool.breaker_states() == {"a": "open"}


async def test_pool_rate_limits_do_not_open_the_breaker(clock: FakeClock) -> None:
    """429 means full, not broken."""
    pool = make_pool(
        [Played("a", 429)],
        clock,
        retry={"attempts": 0},
        breaker={"consecutive_failures": 1, "max_ejection_percent": 100},
    )
    for _ in range(10):
        await pool.send(make_call(deadline=DEADLINE))

    assert pool.breaker_states() == {"a": "closed"}


async def test_pool_all_breakers_open_says_when_to_come_back(clock: FakeClock) -> None:
    """Nobody is asked; the error names the time until the next half-open."""
    backend = Played("a", 500)
    pool = make_pool(
        [backend], clock, breaker={"consecutive_failures": 1, "open_for": "30s", "max_ejection_percent": 100}
    )
    await pool.send(make_call(deadline=DEADLINE))
    await clock.advance(10)

    with pytest.raises(NoBackendAvailable) as raised:
        await pool.send(make_call(deadline=DEADLINE))

    assert raised.value.retry_after_s == pytest.approx(20)
    assert len(backend.calls) == 1


async def test_pool_breaker_half_opens_and_closes(clock: FakeClock) -> None:
    """After its time one call may try; when that works the backend is back."""
    backend = Played("a", 500, 200)
    pool = make_pool(
        [backend], clock, breaker={"consecutive_failures": 1, "open_for": "30s", "max_ejection_percent": 100}
    )
    await pool.send(make_call(deadline=DEADLINE))
    await clock.advance(30)
    half = pool.breaker_states()
    await pool.send(make_call(deadline=DEADLINE))

    assert (half, pool.breaker_states()) == ({"a": "half_open"}, {"a": "closed"})


async def test_pool_ejects_no_more_than_its_share(clock: FakeClock) -> None:
    """With all four down, two stay in rotation: half of the route keeps being tried."""
    backends = [Played(name, ConnectFailed("down")) for name in "abcd"]
    pool = make_pool(backends, clock, retry={"attempts": 0}, breaker={"consecutive_failures": 2})
    for _ in range(100):
        with pytest.raises(ConnectFailed):
            await pool.send(make_call(deadline=DEADLINE))

    assert sorted(pool.breaker_states().values()) == ["closed", "closed", "open", "open"]


async def test_pool_two_members_one_may_always_be_out(clock: FakeClock) -> None:
    """Even at 0 % a failing member makes way for a healthy one."""
    down = Played("down", 500)
    pool = make_pool([down, Played("up")], clock, breaker={"consecutive_failures": 2, "max_ejection_percent": 0})
    for _ in range(20):
        await pool.send(make_call(deadline=DEADLINE))

    assert len(down.calls) == 2


async def test_pool_weight_zero_is_never_asked(clock: FakeClock) -> None:
    """Not even where all else fails."""
    parked = Played("parked")
    pool = make_pool([Member(Played("a", 503)), Member(parked, weight=0)], clock)
    await finish(clock, pool.send(make_call(deadline=DEADLINE)))

    assert parked.calls == []


async def test_pool_call_goes_only_to_members_that_answer_its_operation(clock: FakeClock) -> None:
    """Capabilities are the union, so each operation has its own choice; what nobody claims goes to anyone."""
    chat, both = Played("chat"), Played("both", operations=frozenset({Operation.CHAT, Operation.EMBEDDING}))
    pool = make_pool([chat, both], clock)
    for _ in range(4):
        await pool.send(make_call(operation=Operation.EMBEDDING, deadline=DEADLINE))
    asked = len(chat.calls), len(both.calls)
    for _ in range(4):
        await pool.send(make_call(operation=Operation.COMPLETION, deadline=DEADLINE))

    assert pool.capabilities.operations == {Operation.CHAT, Operation.EMBEDDING}
    assert asked == (0, 4)
    assert (len(chat.calls), len(both.calls)) == (2, 6)


async def test_pool_same_backend_twice_has_two_breakers(clock: FakeClock) -> None:
    """One backend under two models: each place is named and judged by itself."""
    backend = Played("openai", 500, 200)
    members = [Member(backend, model="big"), Member(backend, model="small")]
    pool = make_pool(members, clock, breaker={"consecutive_failures": 1})
    await pool.send(make_call(deadline=DEADLINE))

    assert pool.breaker_states() == {"openai:big": "open", "openai:small": "closed"}


async def test_pool_error_of_the_call_itself_is_raised_at_once(clock: FakeClock) -> None:
    """A leaf that cannot put the call to its upstream says so once, and stays in rotation."""

    async def refuse(_: object) -> Reply:
        raise InvalidRequest("no such parameter")

    spare = Played("b")
    pool = make_pool([Played("a", refuse), spare], clock, breaker={"consecutive_failures": 1})

    with pytest.raises(InvalidRequest):
        await pool.send(make_call(deadline=DEADLINE))
    assert pool.breaker_states()["a"] == "closed"
    assert spare.calls == []


async def test_pool_does_not_open_or_close_its_members(clock: FakeClock) -> None:
    """Members may be in several pools; the fakes fail if they are opened or closed."""
    pool = make_pool([Played("a")], clock)
    await pool.open()
    await pool.aclose()

    assert (await pool.send(make_call(deadline=DEADLINE))).status == 200


async def test_pool_breaker_that_opens_during_the_wait_ends_the_call(clock: FakeClock) -> None:
    """A retry that finds its backend out of rotation gives the upstream's last answer, still readable."""
    backend = Played("a", stream_reply(b"busy", status=429), 500)
    pool = make_pool([backend], clock, breaker={"consecutive_failures": 1, "max_ejection_percent": 100})
    waiting = asyncio.ensure_future(pool.send(make_call(deadline=DEADLINE)))
    await settle()
    await pool.send(make_call(deadline=DEADLINE))
    await clock.advance(1)

    assert await read_all(await waiting) == b"busy"

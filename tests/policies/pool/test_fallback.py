"""Falling back to other routes: when, in which order, and what the client sees if nothing helps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from backends.errors import (
    ConnectFailed,
    FirstTokenTimeout,
    InvalidRequest,
    NoBackendAvailable,
    UpstreamCut,
    UpstreamError,
    UpstreamErrorEvent,
)
from backends.operations import Operation
from backends.protocol import Backend, Call, Capabilities, Reply, Statistics, Timeouts
from backends.stream import StreamEnd
from policies.pool.attempts.settings import FallbackOn
from policies.pool.fallback import Fallback, FallbackTarget
from tests.support.calls import make_call, read_all
from tests.support.clock import FakeClock, settle
from tests.support.policy.pool import Outcome, Played, error_reply, make_pool, stream_reply

DEADLINE = 10_000.0
ALL: tuple[FallbackOn, ...] = ("error", "timeout", "rate_limit", "context_window", "content_policy")


def _fallback(
    inner: Backend, targets: Sequence[tuple[str, Backend]], clock: FakeClock, on: Sequence[FallbackOn] = ALL
) -> Fallback:
    return Fallback(inner, [FallbackTarget(route, backend, Timeouts()) for route, backend in targets], on, clock)


async def test_fallback_answer_of_the_own_route_is_passed_on(clock: FakeClock) -> None:
    """The very same call goes down and no other route is asked."""
    inner, other = Played("inner"), Played("other")
    call = make_call(deadline=DEADLINE, route="first")
    reply = await _fallback(inner, [("second", other)], clock).send(call)

    assert reply.body == b"inner"
    assert inner.calls[0] is call
    assert other.calls == []
    assert call.facts.fallback_route is None


@pytest.mark.parametrize(
    ("outcome", "num_asked"),
    [
        *((500, 0), (504, 0), (408, 0), (409, 0), (UpstreamCut("x"), 0), (FirstTokenTimeout("x"), 0)),
        (UpstreamErrorEvent("this model's maximum context length is 8"), 0),
        *((429, 1), (503, 1), (529, 1), (413, 1), (ConnectFailed("x"), 1), (NoBackendAvailable("x"), 1)),
        (error_reply(400, code="context_length_exceeded"), 1),
    ],
)
async def test_fallback_of_a_call_that_acts_is_asked_where_nobody_has_begun(
    clock: FakeClock, outcome: Outcome, num_asked: int
) -> None:
    """Whatever passes through may act too; of targets the first that may have begun is the last."""
    calls = [
        make_call(deadline=DEADLINE, extra={"mcp_servers": [{"url": "https://mail.example/mcp"}]}),
        make_call(deadline=DEADLINE, operation=Operation.PASSTHROUGH),
    ]
    for call in calls:
        other, last = Played("other", 500), Played("last")
        with suppress(UpstreamError):
            await _fallback(Played("inner", outcome), [("second", other), ("third", last)], clock).send(call)
        assert (len(other.calls), len(last.calls)) == (num_asked, 0)

    other = Played("other")
    with suppress(UpstreamError):
        await _fallback(Played("inner", outcome), [("second", other)], clock).send(make_call(deadline=DEADLINE))
    assert len(other.calls) == 1


async def test_fallback_sends_the_call_on_under_the_other_routes_name_and_limits(clock: FakeClock) -> None:
    """Route and timeouts are the target's; deadline, facts and all else stay the call's own."""
    other = Played("other")
    timeouts = Timeouts(first_token_s=1.5)
    call = make_call(deadline=DEADLINE, route="first", tenant="acme", stream=True)
    fallback = Fallback(Played("inner", 503), [FallbackTarget("second", other, timeouts)], ["error"], clock)
    reply = await fallback.send(call)
    sent = other.calls[0]

    assert reply.body == b"other"
    assert (sent.route, sent.timeouts) == ("second", timeouts)
    assert (sent.deadline, sent.tenant, sent.raw, sent.stream) == (DEADLINE, "acme", call.raw, True)
    assert sent.facts is call.facts
    assert call.facts.fallback_route == "second"


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (500, "error"),
        (503, "error"),
        (ConnectFailed("x"), "error"),
        (UpstreamCut("x"), "error"),
        (NoBackendAvailable("x"), "error"),
        (504, "timeout"),
        (FirstTokenTimeout("x"), "timeout"),
        (429, "rate_limit"),
        (error_reply(400, code="context_length_exceeded"), "context_window"),
        (error_reply(400, code="content_filter"), "content_policy"),
    ],
)
async def test_fallback_only_listed_kinds_are_sent_on(clock: FakeClock, outcome: Outcome, kind: FallbackOn) -> None:
    """A kind that is listed goes on; with every other kind listed it stays."""
    listed, other = Played("listed"), Played("other")
    reply = await _fallback(Played("a", outcome), [("b", listed)], clock, [kind]).send(make_call(deadline=DEADLINE))
    rest = _fallback(Played("a", outcome), [("b", other)], clock, [each for each in ALL if each != kind])

    assert reply.body == b"listed"
    if isinstance(outcome, UpstreamError):
        with pytest.raises(type(outcome)):
            await rest.send(make_call(deadline=DEADLINE))
    else:
        assert (await rest.send(make_call(deadline=DEADLINE))).status >= 400
    assert other.calls == []


async def test_fallback_client_error_is_an_answer(clock: FakeClock) -> None:
    """A bad request is bad everywhere, whether the upstream or the gateway says so."""

    async def refuse(_: Call) -> Reply:
        raise InvalidRequest("no")

    other = Played("other")
    reply = await _fallback(Played("a", 400), [("b", other)], clock).send(make_call(deadline=DEADLINE))

    assert reply.status == 400
    with pytest.raises(InvalidRequest):
        await _fallback(Played("a", refuse), [("b", other)], clock).send(make_call(deadline=DEADLINE))
    assert other.calls == []


async def test_fallback_routes_are_asked_in_order(clock: FakeClock) -> None:
    """The first route that answers wins; those after it are not asked."""
    targets = [Played("b", 500), Played("c", ConnectFailed("x")), Played("d"), Played("e")]
    call = make_call(deadline=DEADLINE, route="a")
    reply = await _fallback(Played("a", 500), [(each.name, each) for each in targets], clock).send(call)
    asked = [each for each in targets if each.calls]

    assert reply.body == b"d"
    assert asked == targets[:3]
    assert call.facts.fallback_route == "d"


async def test_fallback_first_failure_is_shown_if_nothing_helps(clock: FakeClock) -> None:
    """The route's own failure says most; the facts name its backend and no other route."""
    first = stream_reply(b"too", b" busy", status=503)
    pool = make_pool([Played("a", first)], clock, retry={"attempts": 0})
    others = make_pool([Played("b", 400)], clock)
    call = make_call(deadline=DEADLINE, route="first")
    fallback = _fallback(pool, [("second", others)], clock)
    reply = await fallback.send(call)

    assert reply is first
    assert await read_all(reply) == b"too busy"
    assert (call.facts.backend, call.facts.attempts, call.facts.fallback_route) == ("a", 2, None)
    assert fallback.statistics() == Statistics(sent=1, failed=1)


async def test_fallback_first_error_is_raised_if_nothing_helps(clock: FakeClock) -> None:
    """The same for an error without a reply."""
    error = ConnectFailed("first")
    fallback = _fallback(Played("a", error), [("b", Played("b", UpstreamCut("second")))], clock)

    with pytest.raises(ConnectFailed) as raised:
        await fallback.send(make_call(deadline=DEADLINE))
    assert raised.value is error


async def test_fallback_replies_that_are_not_used_are_closed(clock: FakeClock) -> None:
    """The first failure when another route answers, the others' failures in any case."""
    failed = [stream_reply(status=500), stream_reply(status=500)]
    fallback = _fallback(Played("a", failed[0]), [("b", Played("b", failed[1])), ("c", Played("c"))], clock)
    await fallback.send(make_call(deadline=DEADLINE, route="a"))

    assert [reply.stream is not None and reply.stream.end for reply in failed] == [StreamEnd.CLIENT_GONE] * 2


async def test_fallback_after_the_deadline_asks_nobody(clock: FakeClock) -> None:
    """The deadline is the call's own: when it is over, the failure is final."""

    async def slow(_: Call) -> Reply:
        await clock.sleep(5)
        raise FirstTokenTimeout("slow")

    other = Played("other")
    task = asyncio.ensure_future(
        _fallback(Played("a", slow), [("b", other)], clock).send(make_call(deadline=clock.now() + 5))
    )
    await clock.advance(5)

    with pytest.raises(FirstTokenTimeout):
        await task
    assert other.calls == []


async def test_fallback_cancelled_while_another_route_works_closes_the_first_failure(clock: FakeClock) -> None:
    """The held back failure is released when the client leaves."""

    async def slow(_: Call) -> Reply:
        await clock.sleep(5)
        return Reply(200, [], body=b"")

    first = stream_reply(status=500)
    fallback = _fallback(Played("a", first), [("b", Played("b", slow))], clock)
    task = asyncio.ensure_future(fallback.send(make_call(deadline=DEADLINE)))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert first.stream is not None
    assert first.stream.end is StreamEnd.CLIENT_GONE


async def test_fallback_nested_routes_are_each_asked_once(clock: FakeClock) -> None:
    """However the routes' own fallbacks meet, nobody is asked twice: ten routes, each falling back to all after it."""
    leaves = [Played(f"r{number}", 500) for number in range(10)]
    stacks: list[tuple[str, Backend]] = []
    for leaf in reversed(leaves):
        stacks.insert(0, (leaf.name, _fallback(leaf, stacks, clock)))

    reply = await stacks[0][1].send(make_call(deadline=DEADLINE, route="r0"))

    assert reply.status == 500
    assert [len(leaf.calls) for leaf in leaves] == [1] * 10


async def test_fallback_ring_of_routes_ends(clock: FakeClock) -> None:
    """Even a ring, which the loader refuses, comes to an end."""
    ring: list[tuple[str, Backend]] = []
    first = Played("a", 500)
    second = Played("b", 500)
    ring_of_first = Fallback(first, [FallbackTarget("b", _Late(ring), Timeouts())], ["error"], clock)
    ring.append(("b", _fallback(second, [("a", ring_of_first)], clock)))

    reply = await ring_of_first.send(make_call(deadline=DEADLINE, route="a"))

    assert reply.status == 500
    assert (len(first.calls), len(second.calls)) == (1, 1)


async def test_fallback_of_a_fallback_names_the_route_that_answered(clock: FakeClock) -> None:
    """The facts show the last hop."""
    second = _fallback(Played("b", 500), [("third", Played("c"))], clock)
    call = make_call(deadline=DEADLINE, route="first")
    reply = await _fallback(Played("a", 500), [("second", second)], clock).send(call)

    assert reply.body == b"c"
    assert call.facts.fallback_route == "third"


async def test_fallback_opens_and_closes_only_what_it_wraps() -> None:
    """Targets belong to their own routes; name and capabilities are the wrapped stack's."""
    inner = _Owned()
    fallback = _fallback(inner, [("b", Played("b"))], FakeClock())
    await fallback.open()
    await fallback.aclose()

    assert inner.log == ["open", "aclose"]
    assert (fallback.name, fallback.capabilities) == ("owned", inner.capabilities)


class _Owned(Played):
    """A backend that may be opened and closed."""

    def __init__(self) -> None:
        super().__init__("owned", operations=frozenset({Operation.EMBEDDING}))
        self.log: list[str] = []

    async def open(self) -> None:
        """Note it."""
        self.log.append("open")

    async def aclose(self) -> None:
        """Note it."""
        self.log.append("aclose")


class _Late:
    """Stands for a backend that is put into the list later."""

    name = "late"
    capabilities = Capabilities(operations=frozenset({Operation.CHAT}))

    def __init__(self, place: list[tuple[str, Backend]]) -> None:
        self._place = place

    async def open(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""

    def statistics(self) -> Statistics:
        """Nothing counted."""
        return Statistics()

    async def send(self, call: Call) -> Reply:
        """Pass on."""
        return await self._place[0][1].send(call)

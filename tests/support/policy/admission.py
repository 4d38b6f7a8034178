"""A route with admission in virtual time: desks instead of backends, and callers who know what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, TypeVar

from backends.charges.usage import Usage
from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.operations import Operation
from backends.prompts.text import prompt_text
from backends.protocol import Backend, Call, Capabilities, Reply, Statistics
from backends.stream import Stream
from gateway.simulate.virtual_loop import VirtualClock, VirtualLoop
from policies.admission.admission import Admission
from policies.admission.gate import Gate
from policies.pool.load.concurrency_limit import ConcurrencyLimit
from policies.pool.load.fleet import Fleet
from policies.pool.load.latency_model import features
from policies.pool.load.replica import Replica
from policies.pool.member import Member
from policies.pool.pool import Pool
from policies.schema import RoutePolicy
from tests.support.calls import make_call
from tests.support.policy.pool import Outcome, error_reply

_T = TypeVar("_T")


def in_virtual_time(main: Callable[[VirtualClock], Awaitable[_T]]) -> _T:
    """What `main` returns, run on a loop of its own that never waits."""
    loop = VirtualLoop()  # type: ignore[abstract]  # what the world is needed for is left out
    try:
        return loop.run_until_complete(main(VirtualClock(loop)))
    finally:
        loop.close()


class Desk:
    """A backend that begins a stream after `first_s`, and ends it `rest_s` later, however many ask it.

    `outcomes` come first: a status or an error, each for one call.
    """

    def __init__(self, name: str, clock: Clock, *outcomes: Outcome, first_s: float = 1.0, rest_s: float = 1.0) -> None:
        self.name = name
        self.capabilities = Capabilities(operations=frozenset({Operation.CHAT}))
        self.first_s = first_s
        self.rest_s = rest_s
        self.outcomes = list(outcomes)
        self.calls: list[Call] = []
        self.busy = 0
        self.most_at_once = 0
        self._clock = clock

    async def open(self) -> None:
        """Nothing to acquire."""

    async def aclose(self) -> None:
        """Nothing to release."""

    def statistics(self) -> Statistics:
        """Calls taken."""
        return Statistics(sent=len(self.calls))

    async def send(self, call: Call) -> Reply:
        """A stream, once its first token is there."""
        self.calls.append(call)
        call.facts.sent_at = self._clock.now()
        if self.outcomes:
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            assert isinstance(outcome, int | Reply)
            return outcome if isinstance(outcome, Reply) else error_reply(outcome)
        self.busy += 1
        self.most_at_once = max(self.most_at_once, self.busy)
        try:
            await self._clock.sleep(self.first_s)
        except BaseException:
            self.busy -= 1
            raise
        call.facts.first_token_at = self._clock.now()
        return Reply(200, [], stream=Stream(_Rest(self, call, self._clock)))


class _Rest:
    """The rest of a desk's stream: silence, then its end."""

    def __init__(self, desk: Desk, call: Call, clock: Clock) -> None:
        self._desk = desk
        self._call = call
        self._clock = clock
        self._is_over = False

    async def read(self) -> bytes:
        await self._clock.sleep(self._desk.rest_s)
        self._call.facts.usage = Usage(prompt_tokens=10, completion_tokens=10)
        self._leave()
        return b""

    async def aclose(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._desk.busy -= 1


class Site:
    """Routes with a pool each over the same desks. `async with` watches the desks and stops watching them."""

    def __init__(
        self, clock: Clock, desks: Mapping[str, Backend], *, previous: Site | None = None, **routes: dict[str, Any]
    ) -> None:
        policies = [
            RoutePolicy.model_validate(
                {"name": name, "match": {"models": ["*"]}, "backends": [{"ref": desk} for desk in desks], **fields}
            )
            for name, fields in routes.items()
        ]
        self.fleet: Fleet = Fleet(
            policies, desks, clock, random=Random(1), previous=previous.fleet if previous is not None else None
        )
        self.admission = Admission(policies, self.fleet, clock)
        self.pools = {
            policy.name: Pool(
                policy.name,
                [Member(desks[part.ref], weight=part.weight, priority=part.priority) for part in policy.backends],
                retry=policy.retry,
                breaker=policy.circuit_breaker,
                clock=clock,
                random=Random(1),
                routing=self.fleet.routing(policy.name),
                gate=self.admission.gates.get(policy.name),
            )
            for policy in policies
        }

    async def __aenter__(self) -> Site:
        await self.admission.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.admission.aclose()
        await self.fleet.aclose()

    @property
    def gate(self) -> Gate:
        """The first route's."""
        return next(iter(self.admission.gates.values()))

    @property
    def replicas(self) -> list[Replica]:
        """Those of the first route, in order."""
        routing = self.fleet.routing(next(iter(self.pools)))
        assert routing is not None
        return list(routing.replicas)

    def pool(self) -> Pool:
        """The first route's."""
        return next(iter(self.pools.values()))

    def is_at_rest(self) -> bool:
        """Nobody waits, and nothing is counted as being on its way."""
        loads = [replica.in_flight for replica in self.replicas]
        counted = [(load.requests, load.waiting_tokens, load.whole_tokens, load.decoding) for load in loads]
        held = [load.held_tokens for load in loads]
        lines = [gate.queue for gate in self.admission.gates.values()]
        return (
            all(each == (0, 0, 0, 0) for each in counted)
            and not any(held)
            and all(len(line) == 0 and line.tokens == 0 for line in lines)
        )


class OneAtATime(ConcurrencyLimit):
    """A limit of one, whatever the answers show."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 1.0

    def observe(self, delay: float, in_flight: int, sent_at: float, now: float) -> None:
        """Nothing is learned."""


def learned(replica: Replica) -> None:
    """Make a replica known: 20 ms and 25 us a token of prompt, with a residual of 1."""
    model = replica.model
    for number in range(20):
        tokens = 100.0 * (1 + number % 5)
        x = features(0.0, tokens, tokens, 0.0, 0.0)
        model.observe(x, model.predict(x))
    model.residual = 1.0
    assert model.doubt is None


def asking(tokens: int = 10, *, clock: Clock, total_s: float = 1000.0, **fields: Any) -> Call:
    """A streamed call whose prompt is about that long, at most `total_s` from now."""
    empty = len(prompt_text(make_call("", stream=True)))
    text = "x" * max(0, 4 * tokens - empty)
    return make_call(text, stream=True, deadline=clock.now() + total_s, **fields)


async def answered(pool: Pool, call: Call) -> str:
    """Read the answer to its end: "answered", or the code of the error, or the upstream's status."""
    try:
        reply = await pool.send(call)
        try:
            if reply.stream is not None:
                while await reply.stream.read():
                    pass
        finally:
            await reply.aclose()
    except SlipstreamError as error:
        return error.reason
    return "answered" if reply.status < 400 else str(reply.status)


def client(pool: Pool, call: Call) -> asyncio.Task[str]:
    """One that has begun to ask."""
    return asyncio.get_running_loop().create_task(answered(pool, call))

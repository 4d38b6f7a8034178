"""Replays a trace through the stacks of a policy, in virtual time, and notes what became of each request."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from backends.errors import ConfigurationError, SlipstreamError
from backends.protocol import CacheOutcome, Reply, Slo
from backends.registry import Registry
from backends.stream import StreamEnd
from gateway.assembly.assemble import assemble
from gateway.assembly.stores import build_store
from gateway.runtime import Runtime, Stack
from gateway.simulate.trace_calls import PATH, CallMaker
from gateway.simulate.traces import Trace, TraceRequest
from gateway.simulate.virtual_loop import VirtualClock, VirtualLoop
from policies.matching.globs import is_glob
from policies.matching.route_matcher import RouteMatcher
from policies.policy_file.load import LoadedPolicy
from policies.speculation.outcome import DraftOutcome

_PROGRESS_EVERY = 256
_SHED_STATUSES = frozenset({429, 503})
_ANSWERED_HERE = frozenset({CacheOutcome.HIT, CacheOutcome.JOINED})

Progress = Callable[[int, int], None]
"""Told how many requests are over, and how many there are."""


class RequestFate(StrEnum):
    """What became of a request."""

    ANSWERED = "answered"
    SHED = "shed"
    """Turned away with 429 or 503."""
    FAILED = "failed"


class ReplayedRequest(msgspec.Struct, frozen=True):
    """One request, replayed. Times are virtual seconds from its arrival, which was `arrived_at` after the start."""

    request: TraceRequest
    fate: RequestFate
    arrived_at: float
    first_token_s: float
    total_s: float
    backend: str
    attempts: int
    cached_tokens: int
    is_cache_hit: bool
    """Answered by the gateway's own cache."""
    slo: Slo
    cost_usd: float = 0.0
    """Of all its attempts whose price is known."""
    is_drafts: bool = False
    """Answered by a smaller backend in place of the route's own."""

    @property
    def token_gap_s(self) -> float:
        """Mean seconds between the tokens of the answer, after the first."""
        num_gaps = self.request.output_tokens - 1
        return (self.total_s - self.first_token_s) / num_gaps if num_gaps else 0.0


@dataclass(frozen=True, slots=True)
class SimulatedReplay:
    """What a simulation has shown: outcomes in order of arrival, and the real seconds that it took."""

    outcomes: tuple[ReplayedRequest, ...]
    wall_s: float


def replay(
    loaded: LoadedPolicy,
    trace: Trace,
    *,
    stretch: float = 1.0,
    seed: int = 0,
    model: str = "",
    registry: Registry | None = None,
    progress: Progress,
) -> SimulatedReplay:
    """Send the trace's requests at their moments times `stretch`; `loaded` is refitted, with simulated backends only.

    `model` is asked for where the trace names none; empty for the first that the policy names. `registry` says what is
    built for `type: simulated`. The same arguments give the same outcomes.

    Raises: ConfigurationError where no route takes a request.
    """
    began = time.perf_counter()
    loop = VirtualLoop()  # type: ignore[abstract]  # what the world is needed for is left out
    maker = maker_of(loaded, model)
    routes_of(loaded, trace, maker)
    try:
        clock = VirtualClock(loop)
        store = build_store(loaded.policy.stores, clock)
        runtime = assemble(loaded, clock, store, registry or Registry(), seed=seed)
        simulation = _Simulation(runtime, clock, trace, maker, progress)
        with _rare_collections():
            outcomes = loop.run_until_complete(simulation.run(stretch))
    finally:
        loop.close()
    return SimulatedReplay(outcomes, time.perf_counter() - began)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the garbage collector look less often: many small objects live for a while, and hardly any are in cycles."""
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def maker_of(loaded: LoadedPolicy, model: str) -> CallMaker:
    """What makes the policy's calls. `model` as in `replay`."""
    return CallMaker(model or _first_model(loaded), {key.name: key for key in loaded.policy.keys})


def route_of(matcher: RouteMatcher, maker: CallMaker, request: TraceRequest) -> str | None:
    """The name of the route that takes a request."""
    route = matcher.match(
        model=maker.model_of(request), path=PATH, headers=(), key=request.client, tenant=maker.tenant_of(request)
    )
    return route.name if route is not None else None


def _first_model(loaded: LoadedPolicy) -> str:
    names = (name for route in loaded.policy.routes if not route.match.internal for name in route.match.models)
    return next((name for name in names if not is_glob(name)), "simulated-model")


def routes_of(loaded: LoadedPolicy, trace: Trace, maker: CallMaker) -> set[str]:
    """The names of the routes that take the trace's requests.

    Raises: ConfigurationError where none takes one.
    """
    matcher = RouteMatcher(loaded.policy.routes)
    routes: dict[tuple[str, str], str] = {}
    for request in trace.requests:
        if (request.model, request.client) in routes:
            continue
        route = route_of(matcher, maker, request)
        if route is None:
            who = f' of client "{request.client}"' if request.client else ""
            raise ConfigurationError(
                f'{loaded.path}: no route takes a chat completion{who} for the model "{maker.model_of(request)}" '
                f"({trace.name}:{request.line}); name another with --model"
            )
        routes[request.model, request.client] = route
    return set(routes.values())


class _Simulation:
    """One replay. Closes what it opens."""

    def __init__(
        self, runtime: Runtime, clock: VirtualClock, trace: Trace, maker: CallMaker, progress: Progress
    ) -> None:
        self._runtime = runtime
        self._clock = clock
        self._trace = trace
        self._maker = maker
        self._progress = progress
        self._outcomes: list[ReplayedRequest | None] = [None] * len(trace.requests)
        self._num_over = 0

    async def run(self, stretch: float) -> tuple[ReplayedRequest, ...]:
        """Every outcome, once all requests are over."""
        runtime = self._runtime
        await runtime.open()
        try:
            async with asyncio.TaskGroup() as clients:
                await self._send_all(clients, stretch)
        finally:
            await runtime.aclose()
        self._progress(self._num_over, len(self._outcomes))
        return tuple(outcome for outcome in self._outcomes if outcome is not None)

    async def _send_all(self, clients: asyncio.TaskGroup, stretch: float) -> None:
        """Each request at its moment, as a client of its own that waits for nobody."""
        routes: dict[tuple[str, str], Stack] = {}
        start = self._clock.now()
        for number, request in enumerate(self._trace.requests):
            wait_s = start + request.at_s * stretch - self._clock.now()
            if wait_s > 0:
                await self._clock.sleep(wait_s)
            stack = routes.get((request.model, request.client))
            if stack is None:
                name = route_of(self._runtime.matcher, self._maker, request)
                assert name is not None, "routes have been checked"
                stack = routes[request.model, request.client] = self._runtime.stacks[name]
            clients.create_task(self._ask(stack, request, number))

    async def _ask(self, stack: Stack, request: TraceRequest, number: int) -> None:
        """One client: asks, and reads the answer to its end."""
        arrived_at = self._clock.now()
        assert stack.slo is not None, "refitted routes have limits"
        call = self._maker.call(
            request, number=number, route=stack.policy.name, timeouts=stack.timeouts, slo=stack.slo, now=arrived_at
        )
        facts = call.facts
        first_token_at = arrived_at
        try:
            reply = await stack.backend.send(call)
            # Its prompt is long, and nobody needs it while the answer comes.
            del call
            fate = _fate_of(reply.status)
            if fate is RequestFate.ANSWERED:
                first_token_at = self._clock.now()
                fate = await _read_to_the_end(reply)
            await reply.aclose()
        except SlipstreamError as error:
            fate = _fate_of(error.status)
        self._outcomes[number] = ReplayedRequest(
            request=request,
            fate=fate,
            arrived_at=arrived_at,
            first_token_s=first_token_at - arrived_at,
            total_s=self._clock.now() - arrived_at,
            backend=facts.backend or "",
            attempts=facts.attempts,
            cached_tokens=facts.usage.cached_tokens if facts.usage is not None else 0,
            is_cache_hit=facts.cache in _ANSWERED_HERE,
            slo=stack.slo,
            cost_usd=sum(charge.cost or 0 for charge in facts.charges or ()) * 1e-12,
            is_drafts=facts.draft == DraftOutcome.ACCEPTED,
        )
        self._num_over += 1
        if self._num_over % _PROGRESS_EVERY == 0:
            self._progress(self._num_over, len(self._outcomes))


def _fate_of(status: int) -> RequestFate:
    if status < 400:
        return RequestFate.ANSWERED
    return RequestFate.SHED if status in _SHED_STATUSES else RequestFate.FAILED


async def _read_to_the_end(reply: Reply) -> RequestFate:
    """A stream that ends early is a failure."""
    stream = reply.stream
    if stream is None:
        return RequestFate.ANSWERED
    while await stream.read():
        pass
    return RequestFate.ANSWERED if stream.end is StreamEnd.CLEAN else RequestFate.FAILED

"""Fakes for what surrounds a pool: a backend that plays outcomes, time without an event loop, replies and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from random import Random
from typing import Any

import msgspec

from backends.clock import Clock
from backends.errors import UpstreamError, error_body
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Headers, Reply, Statistics
from backends.stream import Stream
from policies.pool.attempts.settings import FallbackOn, RetryPolicy
from policies.pool.member import Member
from policies.pool.pool import Pool
from policies.pool.settings import CircuitBreakerPolicy
from tests.support.clock import FakeClock, settle

Outcome = int | Reply | UpstreamError | Callable[[Call], Awaitable[Reply]]
"""A status to answer with, a reply, an error to raise, or something to await."""


class StoppedClock:
    """Time that a test sets by hand, for code that never sleeps."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        """Monotonic seconds."""
        return self.seconds

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        return 1_700_000_000.0 + self.seconds

    async def sleep(self, seconds: float) -> None:
        """Never to be reached."""
        raise AssertionError(f"nothing may sleep here, asked for {seconds} s")


class Played:
    """A backend that answers call after call with its outcomes; the last one stays."""

    def __init__(
        self, name: str, *outcomes: Outcome, operations: frozenset[Operation] = frozenset({Operation.CHAT})
    ) -> None:
        self.name = name
        self.capabilities = Capabilities(operations=operations)
        self.outcomes: list[Outcome] = list(outcomes or [200])
        self.calls: list[Call] = []

    async def open(self) -> None:
        """Nothing of a pool's business."""
        raise AssertionError("the pool does not own its members")

    async def aclose(self) -> None:
        """Nothing of a pool's business."""
        raise AssertionError("the pool does not own its members")

    def statistics(self) -> Statistics:
        """Calls taken."""
        return Statistics(sent=len(self.calls))

    async def send(self, call: Call) -> Reply:
        """Play the next outcome."""
        self.calls.append(call)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, int):
            return error_reply(outcome) if outcome >= 400 else Reply(outcome, [], body=self.name.encode())
        if isinstance(outcome, UpstreamError):
            raise outcome
        return outcome if isinstance(outcome, Reply) else await outcome(call)


class Pieces:
    """A stream's source: gives its pieces, then an end or an error, and counts how often it was closed."""

    def __init__(self, *pieces: bytes, error: UpstreamError | None = None) -> None:
        self._pieces = list(pieces)
        self._error = error
        self.closed = 0

    async def read(self) -> bytes:
        """The next piece."""
        if self._pieces:
            return self._pieces.pop(0)
        if self._error is not None:
            raise self._error
        return b""

    async def aclose(self) -> None:
        """Count."""
        self.closed += 1


def stream_reply(*pieces: bytes, status: int = 200, error: UpstreamError | None = None) -> Reply:
    """A reply with a stream of its own."""
    return Reply(status, [], stream=Stream(Pieces(*pieces, error=error)))


def error_reply(status: int, message: str = "no", *, code: object = None, retry_after: str | None = None) -> Reply:
    """An upstream's error answer in OpenAI's shape."""
    headers: Headers = [] if retry_after is None else [(b"retry-after", retry_after.encode())]
    if code is None or isinstance(code, str):
        return Reply(status, headers, body=error_body(message, type="server_error", code=code))
    return Reply(status, headers, body=msgspec.json.encode({"error": {"message": message, "code": code}}))


def make_pool(
    members: list[Member] | list[Played],
    clock: Clock,
    *,
    retry: dict[str, Any] | None = None,
    breaker: dict[str, Any] | None = None,
    falls_back_on: Collection[FallbackOn] = (),
    falls_back_to: Collection[str] = ("other",),
) -> Pool:
    """A pool with a policy as in a file."""
    return Pool(
        "route",
        [member if isinstance(member, Member) else Member(member) for member in members],
        retry=RetryPolicy.model_validate(retry or {}),
        breaker=CircuitBreakerPolicy.model_validate(breaker or {}),
        clock=clock,
        random=Random(1),
        falls_back_on=falls_back_on,
        falls_back_to=falls_back_to,
    )


async def finish(clock: FakeClock, work: Coroutine[Any, Any, Reply], limit_s: float = 60.0) -> Reply:
    """The result of `work`, with time moved as far as it needs."""
    task = asyncio.ensure_future(work)
    end = clock.now() + limit_s
    await settle()
    while not task.done() and clock.now() < end:
        await clock.advance(0.01)
    assert task.done(), f"not finished after {limit_s} s"
    return task.result()

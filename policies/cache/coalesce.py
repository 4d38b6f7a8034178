"""Identical calls in flight share one upstream call: a buffer that many read, live and from its beginning.

The task that carries a flight belongs to the `Coalescer`, not to the call that caused it: that call's client may leave
while others go on. When nobody is left the task is cancelled at once. What a call does with a flight is `exact.py`.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine
from enum import IntEnum
from functools import partial
from typing import Any

from backends.clock import Clock
from backends.errors import ClientGone, Draining, InternalError, SlipstreamError, TotalTimeout
from backends.protocol import Call, Facts, Reply
from policies.cache.entry import Entry

_WINDOW_BYTES = 256 * 1024
"""So much of an answer that is too large to store may be buffered ahead of its fastest reader."""


class Phase(IntEnum):
    """The progress of a flight, in this order."""

    WAITING = 0
    ANSWERED = 1
    FLOWING = 2
    LANDED = 3


class Flight:
    """One upstream call, and all calls that read its answer or wait for it.

    Up to `max_bytes` the whole answer is buffered and no reader waits for another. Beyond that the flight is oversize:
    it cannot be joined, no call can wait for its whole answer, pieces that all readers have read are dropped, and the
    upstream waits for the fastest reader. A reader that falls further behind than the buffer allows, while another one
    keeps up, gets ClientGone, so that the others never wait for it.
    """

    def __init__(self, call: Call, max_bytes: int, clock: Clock, close: Callable[[Flight], None]) -> None:
        self.call = call
        self.phase = Phase.WAITING
        self.reply: Reply | None = None
        self.entry: Entry | None = None
        self.error: SlipstreamError | None = None
        self.is_stored_answer = False
        self.num_bytes = 0
        self.is_oversize = False
        self.task: asyncio.Task[None] | None = None
        self._clock = clock
        self._close = close
        self._max_bytes = max_bytes
        self._max_lag_bytes = max(max_bytes, _WINDOW_BYTES)
        self._pieces: list[bytes] = []
        self._num_dropped = 0
        self._readers: set[FlightReader] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._room: asyncio.Future[None] | None = None

    def join(self, call: Call, *, reads: bool) -> FlightReader:
        """Add a reader. A call that waits for the whole answer does not read, so it does not limit the buffer."""
        deadline = call.deadline if call.deadline < self.call.deadline else None
        reader = FlightReader(self, call.facts, deadline, reads=reads)
        self._readers.add(reader)
        return reader

    def answer(self, reply: Reply) -> None:
        """The upstream's stream has begun."""
        self.reply = reply
        self._advance(Phase.ANSWERED)

    def feed(self, piece: bytes) -> None:
        """The next piece of the stream."""
        self._pieces.append(piece)
        self.num_bytes += len(piece)
        if self.num_bytes > self._max_bytes and not self.is_oversize:
            self.is_oversize = True
            self._close(self)
        self._advance(Phase.FLOWING)

    def body(self) -> bytes:
        """All pieces so far; not for an oversize flight, which drops them."""
        return b"".join(self._pieces)

    def land(self, reply: Reply | None, entry: Entry | None, *, is_stored_answer: bool = False) -> None:
        """The answer is complete. `entry` is what other calls may get; `is_stored_answer`: it came from the store."""
        if reply is not None:
            self.reply = reply
        self.entry = entry
        self.is_stored_answer = is_stored_answer
        self._close(self)
        self._advance(Phase.LANDED)

    def fail(self, error: SlipstreamError) -> None:
        """The flight has failed, without an answer or within it."""
        self.error = error
        self._close(self)
        self._advance(Phase.LANDED)

    async def wait_for_room(self) -> None:
        """In an oversize flight, wait until a reader needs more."""
        while True:
            behind = [self.num_bytes - reader.num_read for reader in self._readers if reader.reads]
            self._drop_read_pieces()
            if not behind:
                return
            if min(behind) <= _WINDOW_BYTES:
                break
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        if max(behind) > self._max_lag_bytes:
            for reader in list(self._readers):
                if reader.reads and self.num_bytes - reader.num_read > self._max_lag_bytes:
                    reader.is_dropped = True
                    self._readers.discard(reader)
            self._drop_read_pieces()

    def make_room(self) -> None:
        """A reader has read or left, so the flight may go on."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def leave(self, reader: FlightReader) -> None:
        """Remove a reader. When the last one leaves, the upstream call is cancelled."""
        if reader not in self._readers:
            return
        self._readers.discard(reader)
        self.make_room()
        if not self._readers and self.phase is not Phase.LANDED:
            self._close(self)
            assert self.task is not None, "a flight has its task before anyone can leave it"
            self.task.cancel()

    async def wait_for_change(self, deadline: float | None) -> None:
        """Wait until something happens.

        Raises: TotalTimeout at the deadline.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if deadline is None:
            await waiter
            return
        try:
            async with asyncio.timeout(deadline - self._clock.now()):
                await waiter
        except TimeoutError:
            raise TotalTimeout("the shared answer did not come before this call's deadline") from None

    def pieces_from(self, num_pieces: int) -> tuple[bytes, int]:
        """The pieces after the first `num_pieces`, joined, and the number of all pieces."""
        start = num_pieces - self._num_dropped
        end = len(self._pieces)
        if start == end:
            return b"", num_pieces
        piece = self._pieces[start] if start + 1 == end else b"".join(self._pieces[start:])
        return piece, end + self._num_dropped

    def _advance(self, phase: Phase) -> None:
        self.phase = phase
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _drop_read_pieces(self) -> None:
        num_read = min((reader.num_pieces for reader in self._readers if reader.reads), default=self._num_dropped)
        del self._pieces[: num_read - self._num_dropped]
        self._num_dropped = num_read


class FlightReader:
    """A call that takes part in a flight, and the source of its own stream. Its owner closes it."""

    __slots__ = ("_deadline", "_facts", "_flight", "is_dropped", "num_pieces", "num_read", "reads")

    def __init__(self, flight: Flight, facts: Facts, deadline: float | None, *, reads: bool) -> None:
        self._flight = flight
        self._facts = facts
        self._deadline = deadline
        self.reads = reads
        self.is_dropped = False
        self.num_pieces = 0
        self.num_read = 0

    async def wait_until(self, phase: Phase) -> None:
        """Wait until the flight has reached a phase, or has become too large to wait for its whole answer.

        Raises: TotalTimeout at this call's own deadline.
        """
        flight = self._flight
        while flight.phase < phase and not (flight.is_oversize and not self.reads):
            await flight.wait_for_change(self._deadline)
        self._facts.adopt_answer(self._flight.call.facts)

    async def read(self) -> bytes:
        """All pieces since the last read, b"" at the end.

        Raises: what the upstream's stream raised; TotalTimeout at this call's own deadline; ClientGone where this
        reader has fallen so far behind that the others no longer wait.
        """
        flight = self._flight
        while True:
            if self.is_dropped:
                raise ClientGone("the client reads too slowly for an answer that it shares with others")
            piece, self.num_pieces = flight.pieces_from(self.num_pieces)
            if piece:
                self._facts.may_quote = flight.call.facts.may_quote
                self.num_read = flight.num_bytes
                flight.make_room()
                return piece
            if flight.phase is Phase.LANDED:
                self._facts.adopt_answer(self._flight.call.facts)
                if flight.error is not None:
                    raise again(flight.error)
                return b""
            await flight.wait_for_change(self._deadline)

    def is_over(self) -> bool:
        """Whether this reader has the whole answer, though the flight has not landed."""
        flight = self._flight
        stream = flight.reply.stream if flight.reply is not None else None
        return stream is not None and stream.is_over and self.num_read == flight.num_bytes

    async def aclose(self) -> None:
        """Leave the flight."""
        self._flight.leave(self)


class Coalescer:
    """The flights that can be joined, by key, and the tasks of all flights."""

    def __init__(self, max_bytes: int, clock: Clock) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._flights: dict[bytes, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def flight(self, key: bytes) -> Flight | None:
        """The flight that a call with this key may join."""
        return self._flights.get(key)

    def depart(self, key: bytes, call: Call, carry: Callable[[Flight], Coroutine[Any, Any, None]]) -> Flight:
        """A new flight, carried by a task that runs `carry`: it feeds and lands the flight, or raises why not.

        Raises: Draining after `aclose`.
        """
        if self._is_closed:
            raise Draining("the gateway is shutting down")
        flight = Flight(call, self._max_bytes, self._clock, partial(self._close, key))
        self._flights[key] = flight
        flight.task = asyncio.get_running_loop().create_task(carry(flight))
        self._tasks.add(flight.task)
        flight.task.add_done_callback(partial(self._settle, flight))
        return flight

    async def aclose(self) -> None:
        """Cancel every flight, and wait until the upstream calls are closed. Safe to call twice."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _close(self, key: bytes, flight: Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _settle(self, flight: Flight, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if flight.phase is not Phase.LANDED:
                flight.fail(Draining("the gateway is shutting down"))
            return
        error = task.exception()
        if error is None:
            return
        if not isinstance(error, SlipstreamError):
            cause = error
            error = InternalError("the shared call failed")
            error.__cause__ = cause
        flight.fail(error)


def again(error: SlipstreamError) -> SlipstreamError:
    """A copy to raise: an object that is raised by many tasks would collect all their tracebacks."""
    repeated = copy.copy(error)
    repeated.__cause__ = error.__cause__
    return repeated

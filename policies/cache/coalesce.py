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
"""How far an answer too large to keep may run ahead of its fastest reader."""


class Phase(IntEnum):
    """How far a flight has come; it never goes back."""

    WAITING = 0
    ANSWERED = 1
    FLOWING = 2
    LANDED = 3


class Flight:
    """One upstream call and everyone who reads its answer or waits for it.

    Up to `max_bytes` the whole answer is kept and nobody waits for anybody. Beyond that it can neither be joined nor
    waited for, what everybody has read is forgotten, and the upstream waits for the fastest reader. A reader further
    behind than all that may be kept, while another one keeps up, gets ClientGone: nobody is held up for ever.
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
        """A place in this flight. One that does not read waits for the whole answer and holds nothing up."""
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
        """Everything so far; only of a flight that is not oversize."""
        return b"".join(self._pieces)

    def land(self, reply: Reply | None, entry: Entry | None, *, is_stored_answer: bool = False) -> None:
        """The answer is whole. `entry` is what others may be given of it; `is_stored_answer`: it was looked up."""
        if reply is not None:
            self.reply = reply
        self.entry = entry
        self.is_stored_answer = is_stored_answer
        self._close(self)
        self._advance(Phase.LANDED)

    def fail(self, error: SlipstreamError) -> None:
        """There is no (whole) answer."""
        self.error = error
        self._close(self)
        self._advance(Phase.LANDED)

    async def wait_for_room(self) -> None:
        """Of an oversize flight: wait until a reader has use for more."""
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
        """A reader has read, or left."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def leave(self, reader: FlightReader) -> None:
        """Give a place up. The last one to leave cancels the upstream call."""
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
        """What has come after the first `num_pieces` pieces, as one, and how many pieces there are by now."""
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
    """One call's place in a flight; also the source of that call's own stream. Whoever holds it closes it."""

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
        """Wait until the flight has come so far; not longer than it can be waited for.

        Raises: TotalTimeout at this call's own deadline.
        """
        flight = self._flight
        while flight.phase < phase and not (flight.is_oversize and not self.reads):
            await flight.wait_for_change(self._deadline)
        self._facts.adopt_answer(self._flight.call.facts)

    async def read(self) -> bytes:
        """Everything that has come since the last call, b"" at the end.

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
        """Cancel every flight and wait until their upstream calls are closed. Safe to call twice."""
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
    """A copy to raise: one object raised to many would gather all their tracebacks."""
    repeated = copy.copy(error)
    repeated.__cause__ = error.__cause__
    return repeated

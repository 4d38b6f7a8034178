"""Hides from clients whether an answer was stored: it arrives as late as the original did, and looks new.

It stands before the caches of a route. Everything else of them stays as it is: log and metrics know the outcome.
"""

from __future__ import annotations

import re
from collections import deque
from random import Random

from backends.clock import Clock
from backends.protocol import Backend, CacheOutcome, Call, Reply
from backends.recorded_pace import RecordedPace, Stopwatch
from backends.sse import split_events
from backends.stream import Stream
from policies.stage import Stage

_STORED = (CacheOutcome.HIT, CacheOutcome.SEMANTIC)
_SHOWN_HEADERS = (b"content-type",)
"""The header fields that stored answers have too. Any other field would reveal that the upstream was asked."""

_TIMER_S = 0.0005
"""The event loop's timers have a resolution of a millisecond: half a millisecond early is on time on average."""

_ID = re.compile(rb'"id"\s*:\s*"((?:[^"\\]*[-_])?)([^"\\]+)"')
_CREATED = re.compile(rb'("created(?:_at)?"\s*:\s*)\d+')


class Pacing(Stage):
    """Delays stored answers of the inner caches to the pace that was recorded with them.

    An entry without a recorded pace, or in the other form, is not served at all; `render` ensures that. `inner` is
    opened and closed with this stage.
    """

    def __init__(self, inner: Backend, clock: Clock, random: Random) -> None:
        super().__init__(inner)
        self._clock = clock
        self._random = random

    async def send(self, call: Call) -> Reply:
        """The answer of the inner backend, with the same headers and at the same pace, stored or not.

        Raises: what the inner backend raises.
        """
        watch = call.facts.stopwatch = Stopwatch(self._clock)
        is_success = False
        try:
            reply = await self._inner.send(call)
            is_success = reply.status == 200
        finally:
            if not is_success:
                # Errors are never stored, so they need no pacing; a fallback may have asked a route without pacing.
                call.facts.stopwatch = None
        if not is_success:
            return reply
        reply.headers = [field for field in reply.headers if field[0] in _SHOWN_HEADERS]
        if call.facts.cache in _STORED and watch.replays is not None:
            return await self._replay(call, reply, watch.began, watch.replays)
        if reply.stream is not None:
            watch.note_head()
            reply.stream.taps.append(watch)
        return reply

    async def _replay(self, call: Call, reply: Reply, began: float, tempo: RecordedPace) -> Reply:
        body = reply.body
        if reply.stream is not None:
            body = b""
            while piece := await reply.stream.read():
                body += piece
        assert body is not None, "a reply has a body or a stream"
        body = as_new(body, self._clock.wall(), self._random)
        await _wait_until(min(began + tempo.head_s, call.deadline), self._clock)
        if reply.stream is None:
            return Reply(reply.status, reply.headers, body=body)
        due = [min(began + at_s, call.deadline) for at_s in tempo.events_s]
        return Reply(reply.status, reply.headers, stream=Stream(_Recorded(body, due, self._clock)))


def as_new(body: bytes, now: float, random: Random) -> bytes:
    """An answer with the present time as its date (seconds since the epoch), and a new id of the same kind."""
    found = _ID.search(body)
    if found is not None:
        kind, own = found.groups()
        other = bytes(random.sample(own, len(own)))
        body = body.replace(b'"%b%b"' % (kind, own), b'"%b%b"' % (kind, other))
    return _CREATED.sub(rb"\g<1>%d" % now, body)


async def _wait_until(moment: float, clock: Clock) -> None:
    wait_s = moment - clock.now() - _TIMER_S
    if wait_s > 0:
        await clock.sleep(wait_s)


class _Recorded:
    """The source of a stored stream: each event at its recorded time, or together with the last event that has one."""

    __slots__ = ("_clock", "_due", "_events")

    def __init__(self, body: bytes, due: list[float], clock: Clock) -> None:
        self._events = deque(split_events(body))
        self._due = deque(due)
        self._clock = clock

    async def read(self) -> bytes:
        """Wait until an event is due; all events that are due, b"" after the last one."""
        if not self._events:
            return b""
        if self._due:
            await _wait_until(self._due[0], self._clock)
        now = self._clock.now() + _TIMER_S
        pieces = [self._next()]
        while self._events and (not self._due or self._due[0] <= now):
            pieces.append(self._next())
        return b"".join(pieces)

    async def aclose(self) -> None:
        """Drop the remaining events."""
        self._events.clear()

    def _next(self) -> bytes:
        if self._due:
            self._due.popleft()
        return self._events.popleft()

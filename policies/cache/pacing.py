"""Hides from clients whether an answer was stored: it comes when its original came, and looks as if it were new.

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
"""What a stored answer has too. All others of an upstream's answer would tell by being there."""

_TIMER_S = 0.0005
"""The event loop's timers count in milliseconds; half of one too early is, in the middle, on time."""

_ID = re.compile(rb'"id"\s*:\s*"((?:[^"\\]*[-_])?)([^"\\]+)"')
_CREATED = re.compile(rb'("created(?:_at)?"\s*:\s*)\d+')


class Pacing(Stage):
    """Lets stored answers of the caches within come at the tempo that was recorded with them.

    An entry without one, or in the other form, is none: `render` sees to that. `inner` is opened and closed with this.
    """

    def __init__(self, inner: Backend, clock: Clock, random: Random) -> None:
        super().__init__(inner)
        self._clock = clock
        self._random = random

    async def send(self, call: Call) -> Reply:
        """The answer of the backend within, with the same headers and at the same pace wherever it came from.

        Raises: what the backend within raises.
        """
        watch = call.facts.stopwatch = Stopwatch(self._clock)
        is_success = False
        try:
            reply = await self._inner.send(call)
            is_success = reply.status == 200
        finally:
            if not is_success:
                # Errors are never stored; and a fallback may ask a route that hides nothing.
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
    """An answer as if it were made now, in seconds since the epoch, under another id of the same make."""
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
    """The source of a stored stream: each event at its moment; events without one come with the last that has."""

    __slots__ = ("_clock", "_due", "_events")

    def __init__(self, body: bytes, due: list[float], clock: Clock) -> None:
        self._events = deque(split_events(body))
        self._due = deque(due)
        self._clock = clock

    async def read(self) -> bytes:
        """The events that are due, once one is; b"" after the last."""
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
        """Forget the rest."""
        self._events.clear()

    def _next(self) -> bytes:
        if self._due:
            self._due.popleft()
        return self._events.popleft()

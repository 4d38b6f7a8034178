"""Accepting by the draft's answer: it is read whole, judged, and passed on or dropped; left as soon as it is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.json_errors import NOT_JSON
from backends.operations import Operation
from backends.protocol import Backend, Call, Reply
from backends.sse import EventBuffer, encode_event, event_data, split_events
from backends.stream import Stream, StreamEnd
from policies.cache.entry import Entry
from policies.cache.record import entry_of_events, may_store
from policies.cache.replay.render import Replayed, content_type_of, render
from policies.speculation.draft import ask_draft
from policies.speculation.outcome import DraftOutcome

_MAX_BYTES = 1024**2
"""Of the events of an answer that is held; of a longer one nothing is known, and the target answers."""


class AnswerReading(Protocol):
    """What is seen of one answer while it comes."""

    is_lost: bool
    """Whether it cannot be accepted any more."""

    def feed(self, data: bytes) -> None:
        """The data of one event."""

    async def score(self, answer: Entry) -> float | None:
        """How good the whole answer is, on the calibration's scale; None where nobody can say."""


class Judging(Protocol):
    """Says how good answers are."""

    @property
    def asks_for(self) -> Mapping[str, Any]:
        """What it wants in the draft's call besides."""

    def begin(self, call: Call, prompt: str) -> AnswerReading:
        """An answer to that call begins."""


class ByAnswer:
    """Of chats alone. The draft is asked for a stream, whatever the client wants: it can be left in the middle."""

    def __init__(self, draft: Backend, judging: Judging, *, threshold: float, clock: Clock) -> None:
        self._draft = draft
        self._judging = judging
        self._threshold = threshold
        self._clock = clock

    async def open(self) -> None:
        """Nothing has to be looked at."""

    async def answer(self, call: Call, prompt: str) -> Reply | DraftOutcome:
        """The draft's answer, its facts taken over; or why there is none."""
        asked = self._asked(call)
        if asked is None:
            return DraftOutcome.UNFIT
        given = await ask_draft(self._draft, asked, self._clock, is_passed_on=False)
        if given is None:
            return DraftOutcome.FAILED
        reading = self._judging.begin(call, prompt)
        sent = msgspec.structs.replace(asked, facts=given.facts)
        wants_logprobs = bool(call.body and call.body.get("logprobs"))
        entry = await self._read(given.reply, sent, reading, wants_logprobs=wants_logprobs)
        if entry is None:
            return DraftOutcome.ABORTED if reading.is_lost else DraftOutcome.FAILED
        score = await reading.score(entry)
        if score is None:
            return DraftOutcome.FAILED
        if not score >= self._threshold:
            return DraftOutcome.REJECTED
        body = render(entry, call)
        if body is None:
            return DraftOutcome.FAILED
        call.facts.adopt_attempt(given.facts)
        # Nobody has seen anything of it until now.
        call.facts.first_token_at = self._clock.now()
        headers = [(b"content-type", content_type_of(entry, call))]
        if call.stream:
            return Reply(200, headers, stream=Stream(Replayed(body)))
        return Reply(200, headers, body=body)

    def _asked(self, call: Call) -> Call | None:
        """The call as the draft gets it; None for one that only the target answers."""
        # What hides that an answer was stored would have to hide this too.
        if call.operation is not Operation.CHAT or call.body is None or call.facts.stopwatch is not None:
            return None
        body = {**call.body, **self._judging.asks_for, "stream": True}
        try:
            raw = msgspec.json.encode(body)
        except (ValueError, OverflowError, RecursionError):
            return None
        return msgspec.structs.replace(call, body=body, raw=raw, stream=True)

    async def _read(self, reply: Reply, call: Call, reading: AnswerReading, *, wants_logprobs: bool) -> Entry | None:
        """The whole answer; None where there is none that could be passed on, or it is lost."""
        stream, headers = reply.stream, list(reply.headers)
        try:
            if stream is None:
                return None
            body = bytearray()
            events = EventBuffer(_MAX_BYTES)
            while piece := await stream.read():
                body += piece
                for event in events.feed(piece):
                    reading.feed(event_data(event) or b"")
                if reading.is_lost or len(body) > _MAX_BYTES:
                    await stream.aclose(StreamEnd.CLIENT_GONE)
                    return None
        except SlipstreamError:
            return None
        finally:
            await reply.aclose()
        said = bytes(body) if wants_logprobs else _without_logprobs(bytes(body))
        entry = entry_of_events(call, headers, said, self._clock.wall())
        return entry if entry is not None and may_store(call, [], entry, _MAX_BYTES) else None


def _without_logprobs(events: bytes) -> bytes:
    """The same without what the client has not asked for."""
    return b"".join(map(_event_without_logprobs, split_events(events)))


def _event_without_logprobs(event: bytes) -> bytes:
    data = event_data(event)
    if data is None or b'"logprobs"' not in data:
        return event
    try:
        said = msgspec.json.decode(data)
        for choice in said["choices"]:
            choice.pop("logprobs", None)
        return encode_event(msgspec.json.encode(said))
    except (*NOT_JSON, KeyError, TypeError, AttributeError):
        return event

"""Taps that read what an answer has used which only passes through: whole JSON and events, of whichever API.

They know OpenAI's words, those of Anthropic's Messages API, and a bare `total_tokens`. Nothing of an answer is held but
an event that is not whole yet, to 64 KiB; of a longer one only the fields that are wanted.
"""

from __future__ import annotations

import re

import msgspec

from backends.charges.told import UpstreamUsage
from backends.charges.usage import Usage, most_told
from backends.http.anthropic.reply import TokenCounts
from backends.http.metering.json_fields import FieldScanner, Wanted
from backends.operations import Metering
from backends.protocol import Call, Facts
from backends.sse import event_data, find_events, whole_events_end
from backends.stream import StreamEnd, Tap
from backends.untrusted import Count, FieldReader, ServiceTier

_MAX_HELD_BYTES = 64 * 1024
_DATA = b"data:"
_LINE_END = re.compile(rb"[\r\n]")
_USAGE = b'"usage"'
_DELTA = b'"content_block_delta"'
_FETCHES = frozenset({"GET", "HEAD", "DELETE"})
"""They tell of what was metered when it was made."""
_OF_ANSWERS: Wanted = {b"usage": None, b"service_tier": None}
_OF_EVENTS: Wanted = {**_OF_ANSWERS, b"response": _OF_ANSWERS, b"message": _OF_ANSWERS}


class _Total(msgspec.Struct):
    total_tokens: Count | None = None


class _Inner(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw()
    service_tier: ServiceTier | None = None


class _PassedEvent(_Inner):
    response: _Inner | None = None
    message: _Inner | None = None


_read_counts = FieldReader(TokenCounts)
_read_usage = FieldReader(UpstreamUsage)
_read_total = FieldReader(_Total)
_read_event = FieldReader(_PassedEvent)
_decode_tier = msgspec.json.Decoder(ServiceTier | None).decode


def passed_taps(call: Call, content_type: bytes, *, is_coded: bool) -> list[Tap]:
    """What reads the usage of an answer of that type, if anything does. `is_coded`: its bytes are compressed."""
    is_free = call.terms is not None and call.terms.metering is Metering.FREE
    if is_free or call.method in _FETCHES or is_coded:
        return []
    if content_type.startswith(b"text/event-stream"):
        return [PassedStreamMeter(call.facts)]
    return [PassedAnswerMeter(call.facts)] if b"json" in content_type else []


class PassedAnswerMeter:
    """Of a whole answer."""

    __slots__ = ("_facts", "_scanner")

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._scanner = FieldScanner(_OF_ANSWERS)

    def feed(self, piece: bytes) -> None:
        """One piece, cut anywhere."""
        self._scanner.feed(piece)

    def end(self, how: StreamEnd) -> None:
        """The answer is over; what it has told by now is told."""
        counts = _Counts()
        counts.add_found(self._scanner)
        self._facts.usage = counts.usage()
        self._facts.is_usage_partial = counts.lacks_output


class PassedStreamMeter:
    """Of a stream of events."""

    __slots__ = ("_counts", "_facts", "_held", "_long_event", "_num_deltas")

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._counts = _Counts()
        self._held = b""
        self._long_event: FieldScanner | None = None
        self._num_deltas = 0

    def feed(self, piece: bytes) -> None:
        """One piece, cut anywhere."""
        if self._long_event is not None:
            piece = self._pass_long_event(self._long_event, piece)
        data = self._held + piece if self._held else piece
        end = whole_events_end(data)
        self._held = data[end:]
        if end:
            self._read(data[:end])
        if len(self._held) > _MAX_HELD_BYTES:
            self._long_event = FieldScanner(_OF_EVENTS)
            self._long_event.feed(self._held[self._held.find(_DATA) + len(_DATA) :])
            self._held = b""

    def end(self, how: StreamEnd) -> None:
        """The stream has ended."""
        facts, counts = self._facts, self._counts
        facts.stream_end = how
        self._read(self._held)
        usage = counts.usage()
        if usage is not None and counts.is_of_beginning:
            # Each piece of an answer is a token, or somewhat more.
            num_tokens = max(usage.completion_tokens, self._num_deltas)
            usage = msgspec.structs.replace(usage, completion_tokens=num_tokens)
        facts.usage = usage
        facts.is_usage_partial = counts.is_of_beginning or counts.lacks_output

    def _read(self, events: bytes) -> None:
        self._num_deltas += events.count(_DELTA)
        for begin, end in find_events(events, _USAGE, events.find(_USAGE)):
            data = event_data(events[begin:end])
            if data is None:
                continue
            try:
                event = _read_event(data)
            except msgspec.DecodeError:
                continue
            told = event if bytes(event.usage) else event.response or event.message or event
            self._counts.add(bytes(told.usage), told.service_tier, is_of_beginning=event.message is not None)

    def _pass_long_event(self, scanner: FieldScanner, piece: bytes) -> bytes:
        """What comes behind the event that is passing."""
        line_end = _LINE_END.search(piece)
        if line_end is None:
            scanner.feed(piece)
            return b""
        scanner.feed(piece[: line_end.start()])
        self._counts.add_found(scanner)
        self._long_event = None
        return piece[line_end.end() :]


class _Counts:
    """What an answer has told by now, in whose words ever."""

    __slots__ = ("_anthropic", "_is_anthropic", "_lacks_output", "_of_message", "_told", "is_of_beginning")

    def __init__(self) -> None:
        self._told: Usage | None = None
        self._anthropic = TokenCounts()
        self._of_message: Usage | None = None
        self._is_anthropic = False
        self._lacks_output = False
        self.is_of_beginning = False
        """Whether an answer that is told in parts has only told what was known at its beginning."""

    def add_found(self, scanner: FieldScanner) -> None:
        """What was found in an answer, or in a long event."""
        try:
            tier = _decode_tier(scanner.found.get(b"service_tier", b"null"))
        except (msgspec.DecodeError, UnicodeDecodeError):
            tier = None
        self.add(scanner.found.get(b"usage", b""), tier)

    def add(self, usage: bytes, service_tier: str | None = None, *, is_of_beginning: bool = False) -> None:
        """A usage object, or nothing. A later one adds to those before of the Messages API. What was told most counts.

        One that tells nothing that counts, or can be believed, takes nothing back.
        """
        try:
            counts, read = _read_counts(usage), _read_usage(usage)
            total = _read_total(usage).total_tokens
        except msgspec.DecodeError:
            return
        self._anthropic.update(counts)
        of_message = self._anthropic.told()
        if of_message is not None:
            self._of_message = most_told(self._of_message, of_message)
        if (
            is_of_beginning
            or counts.cache_read_input_tokens is not None
            or counts.cache_creation_input_tokens is not None
        ):
            self._is_anthropic = True
        told = read.told(service_tier) or (Usage(total) if total else None)
        if told is not None:
            self._lacks_output = read.lacks_output and (self._told is None or self._lacks_output)
            self._told = most_told(self._told, told)
        self.is_of_beginning = is_of_beginning or (self.is_of_beginning and counts.output_tokens is None)

    @property
    def lacks_output(self) -> bool:
        """Whether it has not told how long the answer is, or nothing that can be believed."""
        return self._anthropic.output_tokens is None if self._is_anthropic else self._lacks_output

    def usage(self) -> Usage | None:
        """None where it has told nothing that counts."""
        return self._of_message if self._is_anthropic else self._told

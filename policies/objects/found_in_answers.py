"""Finds the ids of objects that an upstream keeps, in its whole answers and its streams.

No input or output. Only fields that the upstream itself writes are read, and none that repeat what the caller sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from backends.errors import UpstreamGarbage
from backends.json_errors import NOT_JSON
from backends.sse import EventBuffer, event_data
from backends.stream import StreamEnd


class _Named(msgspec.Struct):
    id: Any = None


class _Spoken(msgspec.Struct):
    audio: _Named | None = None


class _Choice(msgspec.Struct):
    message: _Spoken | None = None
    delta: _Spoken | None = None


class _Answer(msgspec.Struct):
    """The fields of an answer that may tell of an object; others are not looked at."""

    object: Any = None
    id: Any = None
    thread_id: Any = None
    output_file_id: Any = None
    error_file_id: Any = None
    result_files: Any = None
    response: msgspec.Raw = msgspec.Raw(b"null")
    file: msgspec.Raw = msgspec.Raw(b"null")
    output: msgspec.Raw = msgspec.Raw(b"null")
    container: msgspec.Raw = msgspec.Raw(b"null")
    message: msgspec.Raw = msgspec.Raw(b"null")
    delta: msgspec.Raw = msgspec.Raw(b"null")
    choices: msgspec.Raw = msgspec.Raw(b"null")


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_decode_items = msgspec.json.Decoder(list[_Named]).decode
_decode_choices = msgspec.json.Decoder(list[_Choice]).decode


def objects_told(said: bytes, *, is_made: bool) -> list[str]:
    """Ids in an answer, or an event, that belong to the caller: results of its object, such as a batch's output file,
    and the object itself where one `is_made`.
    """
    answer = _read(_decode_answer, said)
    if answer is None or answer.object == "list":
        return []
    found = [answer.output_file_id, answer.error_file_id]
    found += answer.result_files if isinstance(answer.result_files, list) else []
    if is_made:
        found += [answer.id, answer.thread_id]
        found += [named.id for part in (answer.response, answer.file) if (named := _read(_decode_named, part))]
    return _ids(found)


def parts_told(said: bytes) -> list[str]:
    """Ids of the parts of an answer, or an event, that a later call may refer to: output items, sound, a container."""
    answer = _read(_decode_answer, said)
    if answer is None:
        return []
    within = _read(_decode_answer, answer.response) or _Answer()
    found = [item.id for output in (answer.output, within.output) for item in _read(_decode_items, output) or ()]
    told = (answer, _read(_decode_answer, answer.message), _read(_decode_answer, answer.delta))
    found += [each.id for part in told if part and (each := _read(_decode_named, part.container))]
    for choice in _read(_decode_choices, answer.choices) or ():
        found += [spoken.audio.id for spoken in (choice.message, choice.delta) if spoken and spoken.audio]
    return _ids(found)


class ObjectIdTap:
    """A `Tap` that hands on what the events of a stream tell, before whoever reads it has them.

    Of objects that are made until one has been told (`is_made` says whether any is waited for), of parts `with_parts`.
    """

    def __init__(self, tell: Callable[[list[str]], None], *, is_made: bool, with_parts: bool) -> None:
        self._tell = tell
        self._is_made = is_made
        self._with_parts = with_parts
        self._events: EventBuffer | None = EventBuffer()

    def feed(self, piece: bytes) -> None:
        """One piece, as it came."""
        if self._events is None:
            return
        try:
            events = self._events.feed(piece)
        except UpstreamGarbage:
            # An event that is too large to buffer names no object.
            self._events = None
            return
        for event in events:
            self._read_event(event)

    def end(self, how: StreamEnd) -> None:
        """The stream is over."""
        if self._events is not None and (rest := self._events.rest()):
            self._read_event(rest)
        self._events = None

    def _read_event(self, event: bytes) -> None:
        found: list[str] = []
        if self._is_made and b'"id"' in event and (data := event_data(event)) is not None:
            found = objects_told(data, is_made=True)
            self._is_made = not found
        # An item's own field of that name is the result of a call.
        if self._with_parts and (b'"output"' in event or b'"audio"' in event or b'"container"' in event):
            found += parts_told(event_data(event) or b"")
        if found:
            self._tell(found)
        if not self._is_made and not self._with_parts:
            self._events = None


def _read(decode: Callable[[bytes | msgspec.Raw], Any], said: bytes | msgspec.Raw) -> Any:
    """None where it is nothing of the sort: an upstream may say anything."""
    try:
        return decode(said)
    except NOT_JSON:
        return None


def _ids(found: list[Any]) -> list[str]:
    return [each for each in found if isinstance(each, str) and each]

"""Streams that another Slipstream can go on with, should this one break off: marked with the tokens that they tell.

And the other end: a call that brings the beginning of its answer gets what comes behind it. See `backends/resume.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from msgspec import structs

from backends.charges.usage import Usage
from backends.engine.request import Event
from backends.errors import InvalidRequest
from backends.protocol import Call
from backends.resume import RESUME_FIELD, Resume, encode_mark
from backends.serving.fields import convert
from backends.serving.replies.parts import Head, ReplyBuilder


class Continuable(ReplyBuilder, Protocol):
    """A stream of which somebody else may have written the beginning."""

    def replay(self, event: Event) -> None:
        """Goes on by what was told elsewhere, and writes nothing of it."""


def requested_resume(call: Call) -> Resume | None:
    """What a call says of its answer's beginning; None where it does not even ask for marks.

    Raises: InvalidRequest.
    """
    if call.resume is not None:
        return call.resume.begun
    field = call.body.get(RESUME_FIELD) if call.body is not None else None
    if field is None:
        return None
    if not isinstance(field, Mapping):
        raise InvalidRequest(f"{RESUME_FIELD} is not an object", param=RESUME_FIELD)
    return convert(field, Resume, RESUME_FIELD)


def resumed_head(head: Head, begun: Resume) -> Head:
    """The head under which the rest of an answer is told: that of its beginning.

    Raises: InvalidRequest where another model began, or the same with other settings.
    """
    if begun.fingerprint != head.fingerprint:
        raise InvalidRequest(
            f'the answer was begun by "{begun.fingerprint}" and this model is "{head.fingerprint}": it would go on '
            "with other tokens",
            param=RESUME_FIELD,
        )
    return replace(head, id=begun.id, created=begun.created, requests=head.id)


class MarkedStream:
    """A stream with a mark behind all that is written at once."""

    def __init__(self, stream: Continuable, head: Head) -> None:
        self._stream = stream
        self._next = Resume(id=head.id, created=head.created, fingerprint=head.fingerprint)
        self._tokens: list[int] = []

    def take(self, event: Event) -> None:
        """Note what a step brought, or what was told elsewhere."""
        if event.is_replayed:
            self._stream.replay(event)
        else:
            self._stream.take(event)
            self._tokens += event.tokens

    def drain(self) -> bytes:
        """What was taken since the last call. Tokens that have shown nothing yet wait: they can be told again."""
        shown = self._stream.drain()
        if not shown:
            return b""
        mark = structs.replace(self._next, tokens=tuple(self._tokens))
        self._next = Resume()
        self._tokens.clear()
        return shown + encode_mark(mark)

    def finish(self) -> bytes:
        """The end of the stream, unmarked: it comes whole, or is told again."""
        return self._stream.finish()

    def usage(self) -> Usage:
        """Tokens of the whole answer, wherever they were chosen."""
        return self._stream.usage()

"""Streams that draft tokens can be pushed onto: marked with what whoever drafts has to know. See `drafts/push.py`."""

from __future__ import annotations

import secrets

from backends.drafts.push import MAX_KEPT, DraftMark, encode_draft_mark
from backends.engine.request import Event, Request
from backends.protocol import Usage
from backends.serving.replies.parts import ReplyBuilder


class DraftedStream:
    """A stream with a mark behind all that is written at once, of the one answer to `request`.

    Nothing is written before the stream itself has something to show: until then an error is still an error's answer.
    """

    def __init__(self, stream: ReplyBuilder, request: Request) -> None:
        self.id = f"d-{secrets.token_urlsafe(12)}"
        self._stream = stream
        self._before = (*request.prompt, *request.emitted)
        self.num_before = len(self._before)
        self._tokens: list[int] = []
        self._has_begun = False

    def take(self, event: Event) -> None:
        """Note what a step brought, or what was told elsewhere."""
        self._stream.take(event)
        if not event.is_replayed:
            self._tokens += event.tokens

    def drain(self) -> bytes:
        """What was taken since the last call; only a mark where its tokens show nothing yet."""
        shown = self._stream.drain()
        if not self._tokens or not (shown or self._has_begun):
            return shown
        mark = DraftMark(tokens=tuple(self._tokens))
        if not self._has_begun:
            self._has_begun = True
            mark = DraftMark(id=self.id, room=MAX_KEPT, prompt=self._before, tokens=mark.tokens)
        self._tokens.clear()
        return shown + encode_draft_mark(mark)

    def finish(self) -> bytes:
        """The end of the stream, which tells the last tokens too: who drafts counts what came of it."""
        return self.drain() + self._stream.finish()

    def usage(self) -> Usage:
        """Tokens of the whole answer."""
        return self._stream.usage()

"""Streams that draft tokens can be pushed onto: marked with what whoever drafts has to know. See `drafts/push.py`."""

from __future__ import annotations

import secrets

from msgspec import structs

from backends.charges.usage import Usage
from backends.drafts.push import MAX_KEPT, DraftMark, encode_draft_mark
from backends.drafts.rounds import MOST_A_ROUND
from backends.engine.request import Event, Request
from backends.serving.replies.parts import ReplyBuilder


class DraftedStream:
    """A stream with a mark behind all that is written at once, of the one answer to `request`.

    Nothing is written before the stream itself has something to show: until then an error is still an error's answer.
    But for answers that go by rounds: who drafts has to know that they wait.
    """

    def __init__(self, stream: ReplyBuilder, request: Request) -> None:
        self.id = f"d-{secrets.token_urlsafe(12)}"
        self._stream = stream
        self._before = (*request.prompt, *request.emitted)
        self.num_before = len(self._before)
        self._tokens: list[int] = []
        self._has_begun = False
        self._by_rounds = request.by_rounds

    def take(self, event: Event) -> None:
        """Note what a step brought, or what was told elsewhere."""
        self._stream.take(event)
        if not event.is_replayed:
            self._tokens += event.tokens

    def drain(self) -> bytes:
        """What was taken since the last call; only a mark where its tokens show nothing yet."""
        shown = self._stream.drain()
        if not self._tokens or not (shown or self._has_begun or self._by_rounds):
            return shown
        return shown + self._mark()

    def finish(self) -> bytes:
        """The end of the stream, which tells the last tokens too: who drafts counts what came of it."""
        shown = self._stream.drain()
        has_mark = self._by_rounds or (self._tokens and (shown or self._has_begun))
        return shown + (self._mark(is_last=self._by_rounds) if has_mark else b"") + self._stream.finish()

    def usage(self) -> Usage:
        """Tokens of the whole answer."""
        return self._stream.usage()

    def _mark(self, *, is_last: bool = False) -> bytes:
        mark = DraftMark(tokens=tuple(self._tokens), is_last=is_last)
        if not self._has_begun:
            self._has_begun = True
            room = MOST_A_ROUND if self._by_rounds else MAX_KEPT
            mark = structs.replace(mark, id=self.id, room=room, prompt=self._before, by_rounds=self._by_rounds)
        self._tokens.clear()
        return encode_draft_mark(mark)

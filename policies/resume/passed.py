"""What of an answer the client has, and where it could go on: the events of one stream, or of several after each other.

marked     events | mark | events | mark | ...      passed on at each mark, with which the tokens are known
unmarked   event | event | ...                      passed on as they come, and only their text is known
"""

from __future__ import annotations

import msgspec

from backends.errors import UpstreamErrorEvent, UpstreamGarbage
from backends.json_errors import NOT_JSON
from backends.operations import Operation
from backends.resume import BrokenAnswer, Continues, Resume, read_mark
from backends.sse import EventBuffer, event_data, has_done
from policies.resume.text import PassedText

_ERROR = b'"error"'
_MAX_HELD_BYTES = 1024**2
_MAX_TOKENS = 1_000_000
"""Beyond these somebody does not mean to be gone on with, or is no engine: the stream passes, and stays broken if it
breaks."""


class _Chunk(msgspec.Struct):
    id: object = None
    error: object = None


_decode = msgspec.json.Decoder(_Chunk).decode


class PassedStream:
    """Takes pieces of streams, gives what the client gets. `tells_text`: its text is wanted too.

    `failure` is there once an event has said that there will be no more.
    """

    def __init__(self, operation: Operation, *, tells_text: bool) -> None:
        self._text = PassedText(operation) if tells_text else None
        self._buffer = EventBuffer()
        self._held: list[bytes] = []
        self._num_held = 0
        self._head = Resume()
        self._tokens: list[int] = []
        self._is_marked = False
        self._is_loose = False
        self._is_retold = False
        self._has_to_be_known = False
        self.failure: UpstreamErrorEvent | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that were told, as far as marks have named them."""
        return len(self._tokens)

    @property
    def num_pieces(self) -> int:
        """Events that said something, where the text is wanted."""
        return self._text.num_pieces if self._text is not None else 0

    def broken(self, kind: Continues, takers: frozenset[str]) -> BrokenAnswer | None:
        """The answer for somebody who goes on behind its tokens, or its text; None where it cannot be told so."""
        if kind == "tokens":
            if not self._tokens or self._is_loose or len(self._tokens) > _MAX_TOKENS:
                return None
            return BrokenAnswer(begun=msgspec.structs.replace(self._head, tokens=tuple(self._tokens)), takers=takers)
        if self._text is None or not self._text.text:
            return None
        return BrokenAnswer(text=self._text.text, num_pieces=self._text.num_pieces, takers=takers)

    def follow(self, kind: Continues) -> None:
        """What is fed from here on comes from whom `broken` was given to. What was held is told again by them."""
        self._buffer = EventBuffer()
        self._held.clear()
        self._num_held = 0
        self.failure = None
        if kind == "tokens":
            # Who does not know how to go on would begin anew, under a head of its own.
            self._has_to_be_known = True
            return
        self._is_marked = self._has_to_be_known = False
        self._is_retold = True
        self._tokens.clear()

    def feed(self, piece: bytes) -> bytes:
        """What may be passed on now; perhaps nothing yet. Raises: UpstreamGarbage."""
        shown: list[bytes] = []
        for event in self._buffer.feed(piece):
            self._take(event, shown)
        if self.failure is None and (not self._is_marked or self._num_held > _MAX_HELD_BYTES):
            # Without tokens nothing can be told again, so nothing is gained by waiting.
            self._pass_on(shown)
        return b"".join(shown)

    def rest(self) -> bytes:
        """What was held when the stream ended, or broke off for good."""
        shown: list[bytes] = []
        self._pass_on(shown)
        return b"".join(shown) + self._buffer.rest()

    def _take(self, event: bytes, shown: list[bytes]) -> None:
        try:
            mark = read_mark(event)
        except msgspec.DecodeError as error:
            raise UpstreamGarbage(f"the upstream's mark cannot be read: {error}") from None
        if mark is not None:
            if not self._tokens:
                self._head = msgspec.structs.replace(mark, tokens=())
            if len(self._tokens) <= _MAX_TOKENS:
                self._tokens += mark.tokens
            self._is_marked = True
            self._pass_on(shown)
            self._is_loose = False
            return
        if self._has_to_be_known or _ERROR in event:
            self._look_at(event)
        self._held.append(event)
        self._num_held += len(event)
        if has_done(event):
            self._pass_on(shown)

    def _look_at(self, event: bytes) -> None:
        """Whether the event belongs to the answer that is to go on, and whether it says that it has failed."""
        data = event_data(event)
        try:
            chunk = _decode(data) if data is not None else None
        except NOT_JSON:
            return
        if chunk is None:
            return
        if chunk.error is not None:
            self.failure = UpstreamErrorEvent("the upstream's stream ended with an error")
        elif self._has_to_be_known:
            if chunk.id != self._head.id:
                raise UpstreamGarbage("the upstream began another answer instead of going on")
            self._has_to_be_known = False

    def _pass_on(self, shown: list[bytes]) -> None:
        for held in self._held:
            event = held
            if self._text is not None:
                if self._is_retold:
                    event = self._text.retold(event)
                self._text.read(event)
            shown.append(event)
            self._is_loose = True
        self._held.clear()
        self._num_held = 0

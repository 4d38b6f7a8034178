"""An answer of an upstream Slipstream that goes by rounds, as one stream: each round's reply is its next piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from backends.clock import Clock
from backends.drafts.push import Draft
from backends.drafts.rounds import SESSION_HEADER, VERIFY_PATH, Round
from backends.errors import ConnectFailed, UnknownObject, UpstreamCut, UpstreamError, UpstreamGarbage
from backends.http.wire import TimeLimits, Wire, WireExchange
from backends.protocol import Call, Headers

_LIMIT_S = 30.0
"""Of a round. A step takes well under a second, unless the target's prompts are long and many."""
_CLOSE_LIMIT_S = 2.0
_TTL_S = 10.0
_MAX_PIECE_BYTES = 1024**2
_END = b"data: [DONE]\n\n"
REFUSALS = frozenset({403, 404, 405, 501})
"""With which a server says that it has no sessions, or none for this key."""


def opening(call: Call, body: bytes) -> bytes:
    """What opens a session for a call, `body` being what would be sent to its own path."""
    path = msgspec.json.encode(call.path)
    return b'{"path":%b,"ttl_s":%d,"body":%b}' % (path, _TTL_S, body)


def session_of(exchange: WireExchange) -> str:
    """The id of the session whose first piece an exchange is; empty where it is none."""
    return next((value.decode("latin-1") for name, value in exchange.headers if name == SESSION_HEADER), "")


class RoundsSource:
    """The source of such an answer's stream. `first` is the reply that has opened it. The session is ended where the
    stream is left, and `closed` is called once.
    """

    def __init__(
        self,
        wire: Wire,
        base_path: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        first: WireExchange,
        deadline: float,
        clock: Clock,
        closed: Callable[[str], object],
    ) -> None:
        self.id = session_of(first)
        self._deadline = deadline
        self._closed = closed
        self._wire = wire
        self._target = base_path + VERIFY_PATH.encode("ascii")
        self._headers: Headers = list(headers)
        self._exchange: WireExchange | None = first
        self._clock = clock
        self._piece = b""
        self._tail = b""
        self._is_over = False

    async def read(self) -> bytes:
        """The next piece, b"" behind the answer's end. Raises: as an exchange; UpstreamCut where no round was asked."""
        piece, self._piece = self._piece, b""
        if not piece and self._exchange is not None:
            piece = await self._exchange.read()
            if not piece:
                await self._close_exchange()
        if piece:
            self.note(piece)
        elif not self._is_over:
            raise UpstreamCut("the upstream waits for a round that nobody has asked for")
        return piece

    def note(self, piece: bytes) -> None:
        """A piece has passed, of those that were read off the first reply before this was made too."""
        self._tail = (self._tail + piece)[-len(_END) :]
        self._is_over = self._tail == _END

    async def verify(self, draft: Draft, *, alone: bool) -> None:
        """Ask a round, whose events can be read then; a reply that is lost is asked for once more.

        Raises: UnknownObject where the session is gone, or elsewhere; UpstreamError.
        """
        while self._exchange is not None:
            if rest := await self._exchange.read():
                self._piece += rest
            else:
                await self._close_exchange()
        body = msgspec.json.encode(Round(self.id, draft.at, draft.tokens, alone))
        try:
            exchange = await self._post(body, _LIMIT_S)
        except (UpstreamCut, ConnectFailed):
            exchange = await self._post(body, _LIMIT_S)
        self._exchange = exchange
        if exchange.status in (404, 409):
            await self._close_exchange()
            raise UnknownObject("the upstream has no such session, or not there")
        if exchange.status != 200:
            await self._close_exchange()
            raise UpstreamGarbage(f"the upstream answered a round with status {exchange.status}")
        if not alone:
            self._piece += await exchange.body(_MAX_PIECE_BYTES)
            await self._close_exchange()

    async def aclose(self) -> None:
        """End the session where the answer is not over. Safe to call twice."""
        self._closed(self.id)
        await self._close_exchange()
        if self._is_over:
            return
        self._is_over = True
        try:
            exchange = await self._post(msgspec.json.encode(Round(self.id, close=True)), _CLOSE_LIMIT_S)
            await exchange.aclose()
        except UpstreamError:
            # It ends by itself soon.
            return

    async def _post(self, body: bytes, limit_s: float) -> WireExchange:
        deadline = max(self._deadline, self._clock.now() + limit_s)
        limits = TimeLimits(connect_s=limit_s, first_byte_s=limit_s, idle_s=limit_s, deadline=deadline)
        return await self._wire.send("POST", self._target, self._headers, body, limits)

    async def _close_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.aclose()

"""One connection to Redis: what is sent in a turn of the event loop goes in one write, replies come in the same order.

It knows no commands, and nothing of what happens after it has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from policies.limits.redis.replies import NotRedisError, Replies, Reply

LOST = ConnectionError("the connection to redis has ended")
"""Stands for a reply that never comes. Whether the command was carried out, nobody knows."""

_MAX_WAITING = 20_000


class RedisWire(asyncio.Protocol):
    """Made by `loop.create_connection`. `on_end` is called once, when it is over, however that came, and before
    replies are lost; `on_slow` when the oldest reply has been due for `deadline_s`, and now and then as long as it is.
    """

    def __init__(self, deadline_s: float, on_slow: Callable[[], None], on_end: Callable[[], None]) -> None:
        self.is_ended = False
        self._deadline_s = deadline_s
        self._on_slow = on_slow
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._replies = Replies()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._waiting: deque[tuple[float, Callable[[Reply], None]]] = deque()
        self._watching: asyncio.TimerHandle | None = None

    @property
    def has_room(self) -> bool:
        """Whether it is worth sending more: the connection lives, and not too many replies are due."""
        return not self.is_ended and len(self._waiting) < _MAX_WAITING

    def send(self, command: bytes, on_reply: Callable[[Reply], None]) -> None:
        """Send a packed command. `on_reply` is called exactly once and must not raise."""
        if self.is_ended:
            self._loop.call_soon(on_reply, LOST)
            return
        if not self._unsent:
            self._loop.call_soon(self._write)
        self._unsent.append(command)
        self._waiting.append((self._loop.time(), on_reply))
        if self._watching is None:
            self._watching = self._loop.call_later(self._deadline_s, self._watch)

    async def ask(self, command: bytes) -> Reply:
        """Send a packed command and wait for its reply. Cancelled, the reply is not looked at."""
        replied = self._loop.create_future()

        def resolve(reply: Reply) -> None:
            if not replied.done():
                replied.set_result(reply)

        self.send(command, resolve)
        return cast(Reply, await replied)

    def due(self) -> list[Callable[[Reply], None]]:
        """Who is still to be called with a reply, in order."""
        return [on_reply for _, on_reply in self._waiting]

    def abort(self) -> None:
        """End it now; what was not replied is lost."""
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """As `asyncio.Protocol`."""
        waiting = self._waiting
        try:
            for reply in self._replies.read(data):
                waiting.popleft()[1](reply)
        except (NotRedisError, IndexError):
            # Not the language of Redis, or a reply to nothing: no later reply can be trusted.
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """As `asyncio.Protocol`."""
        if self.is_ended:
            return
        self.is_ended = True
        if self._watching is not None:
            self._watching.cancel()
        self._unsent.clear()
        self._on_end()
        while self._waiting:
            self._waiting.popleft()[1](LOST)

    def _write(self) -> None:
        if self._unsent and self._transport is not None:
            pieces, self._unsent = self._unsent, []
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _watch(self) -> None:
        """Look at the oldest reply that is due: one timer for all, for one each would cost a call a microsecond."""
        self._watching = None
        if not self._waiting or self.is_ended:
            return
        late_in_s = self._waiting[0][0] + self._deadline_s - self._loop.time()
        if late_in_s <= 0:
            self._on_slow()
            late_in_s = self._deadline_s / 4
        if not self.is_ended:
            self._watching = self._loop.call_later(max(late_in_s, 0.001), self._watch)

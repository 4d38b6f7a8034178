"""An index of this process that others keep up to date: what each replica adds and removes goes through a Redis stream.

For a Redis without vector sets. The stream is read from its beginning at the start, so a new replica finds what the
others have; it holds the latest `max_length` changes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from policies.cache.redis_link import Command, RedisLink, Write, prolonged
from policies.cache.semantic.contracts import Index, Neighbour, Question, Vector

_MAX_READ_AT_ONCE = 64
_BLOCK_MS = 500
_FIELD = b"change"


class _Change(msgspec.Struct, frozen=True, array_like=True):
    """What one replica did. Without a vector, ids were removed."""

    origin: str
    scope: bytes
    group: bytes
    ids: tuple[str, ...]
    vector: bytes | None


_DECODER = msgspec.msgpack.Decoder(_Change)


class StreamIndex:
    """`embedded` is searched; `follow` brings it what other replicas did, within a moment.

    `origin` names this process among the replicas: its own changes are not made twice. The stream's name holds the
    encoder's `fingerprint`, so vectors of another encoder are never read. After the last
    change it stays for as long as any scope's answers may live, by `ttl_s`.
    """

    def __init__(
        self,
        link: RedisLink,
        embedded: Index,
        *,
        origin: str,
        fingerprint: str,
        dimension: int,
        max_length: int,
        ttl_s: Callable[[bytes], float],
    ) -> None:
        self._link = link
        self._embedded = embedded
        self._origin = origin
        self._dimension = dimension
        self._max_length = max_length
        self._ttl_s = ttl_s
        self._key = f"{link.prefix}:changes:{fingerprint}"
        self._last_id = "0"
        self._numbers = itertools.count()
        self.num_received = 0
        self.num_errors = 0

    async def search(self, question: Question, vector: Vector, count: int) -> Sequence[Neighbour]:
        """Up to `count` nearest entries of the group, nearest first."""
        return await self._embedded.search(question, vector, count)

    def add(self, question: Question, id: str, vector: Vector) -> None:
        """Found by `search` from now on; by other replicas soon."""
        self._embedded.add(question, id, vector)
        self._publish(question, (id,), np.ascontiguousarray(vector, dtype="<f4").tobytes())

    def remove(self, question: Question, ids: Sequence[str]) -> None:
        """No longer found."""
        self._embedded.remove(question, ids)
        self._publish(question, tuple(ids), None)

    async def follow(self) -> None:
        """Take over what others do, until Redis fails: raises what the client raises."""
        while True:
            reply: Any = await self._link.call(
                *("XREAD", "COUNT", _MAX_READ_AT_ONCE, "BLOCK", _BLOCK_MS, "STREAMS", self._key, self._last_id)
            )
            for entry_id, fields in reply[0][1] if reply else ():
                self._last_id = entry_id.decode()
                self._take(fields or ())
            # Reading a long stream from its beginning must not keep the event loop from its calls.
            await asyncio.sleep(0)

    def _publish(self, question: Question, ids: tuple[str, ...], vector: bytes | None) -> None:
        change = msgspec.msgpack.encode(_Change(self._origin, question.scope, question.group, ids, vector))
        commands: tuple[Command, ...] = (
            ("XADD", self._key, "MAXLEN", "~", self._max_length, "*", _FIELD, change),
            *prolonged(self._key, self._ttl_s(question.scope)),
        )
        self._link.write(("change", str(next(self._numbers))), Write(commands), len(change))

    def _take(self, fields: Sequence[bytes]) -> None:
        values = dict(zip(fields[::2], fields[1::2], strict=False))
        try:
            change = _DECODER.decode(values.get(_FIELD, b""))
            vector = None if change.vector is None else np.frombuffer(change.vector, dtype="<f4").astype(np.float32)
        except ValueError:
            self.num_errors += 1
            return
        if change.origin == self._origin:
            return
        # The text is not shared: nobody searches by it.
        question = Question(change.scope, change.group, "")
        if vector is None:
            self._embedded.remove(question, change.ids)
        elif vector.shape != (self._dimension,) or not np.isfinite(vector).all() or len(change.ids) != 1:
            self.num_errors += 1
            return
        else:
            self._embedded.add(question, change.ids[0], vector)
        self.num_received += 1

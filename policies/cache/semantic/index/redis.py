"""The index that replicas share through Redis: vector sets where it has them (Redis 8), else an embedded one fed by it.

Which of the two is asked at the start, and again whenever the connection was lost or a command is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from backends.clock import Clock
from policies.cache.redis_link import RedisLink
from policies.cache.semantic.contracts import Index, Neighbour, Question, Vector
from policies.cache.semantic.index.stream import StreamIndex
from policies.cache.semantic.index.vector_sets import VectorSetIndex
from policies.loop import Loop

Kind = Literal["unknown", "vector_sets", "stream"]

_MAX_STREAM_LENGTH = 20_000

_LOGGER = logging.getLogger(__name__)


class RedisIndexStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable snapshot. `away`: searches that Redis did not answer in time. `received`: changes of others.

    `errors` are replies that were errors, connections that were lost, changes that could not be read, and vectors that
    came before Redis had said what it can do.
    """

    kind: Kind
    searches: int
    away: int
    errors: int
    received: int


class RedisIndex:
    """Vectors of one encoder, shared. `link` is opened and closed by whoever made it, before and after this.

    `embedded` is opened where it is needed, and then closed with this. `ttl_s`: how long an answer of a scope may live.
    """

    def __init__(
        self,
        link: RedisLink,
        embedded: Index,
        clock: Clock,
        *,
        origin: str,
        fingerprint: str,
        dimension: int,
        ttl_s: Callable[[bytes], float],
        max_stream_length: int = _MAX_STREAM_LENGTH,
    ) -> None:
        self._link = link
        self._embedded = embedded
        self._sets = VectorSetIndex(link, ttl_s=ttl_s)
        self._stream = StreamIndex(
            link,
            embedded,
            origin=origin,
            fingerprint=fingerprint,
            dimension=dimension,
            max_length=max_stream_length,
            ttl_s=ttl_s,
        )
        self._kind: Kind = "unknown"
        self._loop = Loop("the shared index", clock, of_service=True)
        self._is_embedded_open = False
        self._searches = 0
        self._away = 0
        self._errors = 0

    async def open(self) -> None:
        """Begin to ask what Redis can do; until it says so, nothing is found and nothing kept."""
        self._loop.start(self._follow)

    async def aclose(self) -> None:
        """Stop following, close the embedded index. Safe to call twice."""
        await self._loop.aclose()
        self._kind = "unknown"
        if self._is_embedded_open:
            self._is_embedded_open = False
            await self._embedded.aclose()

    async def search(self, question: Question, vector: Vector, count: int) -> Sequence[Neighbour]:
        """Up to `count` nearest entries of the question's group, nearest first; none where Redis does not say."""
        self._searches += 1
        if self._kind == "stream":
            return await self._stream.search(question, vector, count)
        found = await self._sets.search(question, vector, count) if self._kind == "vector_sets" else None
        self._away += found is None
        return found or []

    def add(self, question: Question, id: str, vector: Vector) -> None:
        """Found by `search` from now on, or soon. Never waits."""
        if self._kind == "vector_sets":
            self._sets.add(question, id, vector)
        elif self._kind == "stream":
            self._stream.add(question, id, vector)
        else:
            self._errors += 1

    def remove(self, question: Question, ids: Sequence[str]) -> None:
        """No longer found. Unknown ids are nothing. Never waits."""
        if self._kind == "vector_sets":
            self._sets.remove(question, ids)
        elif self._kind == "stream":
            self._stream.remove(question, ids)

    def statistics(self) -> RedisIndexStatistics:
        """A snapshot of the counters."""
        return RedisIndexStatistics(
            kind=self._kind,
            searches=self._searches,
            away=self._away,
            errors=self._errors + self._loop.failures.total + self._sets.num_errors + self._stream.num_errors,
            received=self._stream.num_received,
        )

    async def _follow(self) -> None:
        """Ask what Redis can do, work so until that is in doubt, and ask again. Raises what the client raises."""
        while True:
            await self._work_by_kind()

    async def _work_by_kind(self) -> None:
        reply = await self._link.call("COMMAND", "INFO", "VSIM")
        kind: Kind = "vector_sets" if isinstance(reply, list) and reply and reply[0] else "stream"
        if kind == "stream" and not self._is_embedded_open:
            await self._embedded.open()
            self._is_embedded_open = True
        if kind != self._kind:
            _LOGGER.info("the shared index uses %s", kind.replace("_", " "))
        self._kind = kind
        if kind == "stream":
            await self._stream.follow()
        else:
            self._sets.is_doubted.clear()
            await self._sets.is_doubted.wait()

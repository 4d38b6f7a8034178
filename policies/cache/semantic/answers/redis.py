"""Answers of the semantic cache in Redis, shared by every replica: one hash for each, under its scope's name.

Redis forgets them by itself: each key has its end, so a `maxmemory` with a `volatile-*` policy bounds the whole. What
a tenant may have of it is bounded here: by uses, tokens and labels per byte as in memory, but uses do not fade.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from backends.clock import Clock
from policies.cache.redis_link import Command, RedisLink, Results, Write
from policies.cache.sealed import seal, unseal
from policies.cache.semantic.answers.eviction import MAX_BAD_LABELS, spread_expiry, tokens_saved
from policies.cache.semantic.answers.quotas import Quota, Quotas
from policies.cache.semantic.answers.scripts import DELETE, PUT, RECORD, UNITE
from policies.cache.semantic.contracts import AnswerStatistics, History, SharedStoreUnavailable, StoredAnswer

_MAGIC = b"slipstream stored answer 1\n"
_DECODER = msgspec.msgpack.Decoder(StoredAnswer)
_FIELDS = ("packed", "answer_id", "expires", "good", "bad", "served")
_LISTING_TIMEOUT_S = 1.0
_MAX_LISTED_A_READ = 256

_OVERHEAD_BYTES = 3400
"""What an entry costs Redis 8 beside its body, by INFO memory, rounded up: keys, names in lists, a vector of 384."""


class RedisAnswerStore:
    """Keeps each entry under `<prefix>:<scope in hex>:answer:<id>`. `link` is opened and closed by whoever made it.

    Of a tenant it keeps no more than `quota` of its scope says, whichever replica it comes from.
    """

    def __init__(
        self, link: RedisLink, clock: Clock, random: Random, *, quota: Callable[[bytes], Quota] | None = None
    ) -> None:
        self._link = link
        self._quota = quota or Quotas(sys.maxsize)
        self._clock = clock
        self._random = random
        self._numbers = itertools.count()
        self._all = f"{link.prefix}:answers"
        self._prefix = f"{link.prefix}:"
        self._hits = 0
        self._misses = 0
        self._evicted = 0
        self._rejected = 0
        self._errors = 0
        self._dropped = 0

    async def open(self) -> None:
        """Nothing to acquire beside the link."""

    async def aclose(self) -> None:
        """Nothing to release beside the link."""

    async def get(self, scope: bytes, ids: Sequence[str]) -> Sequence[tuple[StoredAnswer, History] | None]:
        """Each entry of that scope with its history; nothing at all where Redis does not say in time."""
        if not ids:
            return []
        # Looked up before Redis is: what is written while its reply is on the way is in neither afterwards.
        waiting = [self._link.waiting(("put", scope, name)) for name in ids]
        results = await self._link.read(*(("HMGET", self._answer(scope, name), *_FIELDS) for name in ids))
        if results is None:
            self._misses += len(ids)
            return []
        found = [self._found(scope, *each) for each in zip(ids, results, waiting, strict=True)]
        num_missed = found.count(None)
        self._misses += num_missed
        self._hits += len(found) - num_missed
        return found

    def put(self, answer: StoredAnswer) -> None:
        """Have it written soon, to be kept until it expires, give or take a tenth."""
        now = self._clock.wall()
        scope = answer.question.scope
        quota = self._quota(scope)
        num_bytes = len(answer.entry.body) + _OVERHEAD_BYTES
        if answer.expires <= now or num_bytes > quota.max_bytes:
            self._dropped += 1
            return
        expires = spread_expiry(answer.expires, now, self._random)
        answer = msgspec.structs.replace(answer, expires=expires)
        packed = seal(_MAGIC, _seal_key(scope, answer.id), msgspec.msgpack.encode(answer))
        keys = (
            self._answer(scope, answer.id),
            f"{self._scope(scope)}:same:{answer.answer_id}",
            self._all,
            f"{self._prefix}tenant:{quota.tenant}",
        )
        values = (answer.id, _place(scope, answer.id), packed, repr(expires), _milliseconds(expires - now))
        counted = (quota.tenant, num_bytes, tokens_saved(answer.entry), quota.max_bytes)
        command: Command = ("EVAL", PUT, len(keys), *keys, *values, answer.answer_id, self._prefix, *counted)
        write = Write((command,), holds=answer, on_done=self._count_evicted)
        self._link.write(("put", scope, answer.id), write, len(packed))

    def record(self, scope: bytes, id: str, *, good: float = 0.0, bad: float = 0.0, served: int = 0) -> None:
        """Have it added to an entry's history soon."""
        added = (repr(good), repr(bad), served, int(bad > 0.0), MAX_BAD_LABELS)
        command: Command = ("EVAL", RECORD, 1, self._answer(scope, id), *added, self._prefix, scope.hex(), id)
        # Each is written by itself: one that joined another which is on its way would be counted twice.
        self._link.write(("record", str(next(self._numbers))), Write((command,), on_done=self._count_rejected), 0)

    def unite(self, scope: bytes, one: str, other: str) -> None:
        """Have all entries of two answer_ids given that of more of them soon."""
        if one != other:
            command: Command = ("EVAL", UNITE, 0, self._prefix, scope.hex(), one, other)
            self._link.write(("unite", scope, one, other), Write((command,)), 0)

    def delete(self, scope: bytes, ids: Sequence[str]) -> None:
        """Have entries forgotten soon."""
        for name in ids:
            command: Command = ("EVAL", DELETE, 0, self._prefix, _place(scope, name))
            self._link.write(("delete", scope, name), Write((command,), holds=name), 0)

    async def listing(
        self,
        scope: bytes | None,
        count: int,
        *,
        tag: str | None = None,
        model: str | None = None,
        after: tuple[bytes, str] | None = None,
    ) -> Sequence[tuple[StoredAnswer, History]]:
        """Up to `count` entries in the order of scope and id, from behind `after` on.

        Raises: SharedStoreUnavailable.
        """
        start = "-" if scope is None else f"[{scope.hex()}/"
        end = "+" if scope is None else f"({scope.hex()}0"  # "0" is the character behind "/"
        if after is not None and (scope is None or after[0] == scope):
            start = f"({_place(*after)}"
        listed: list[tuple[StoredAnswer, History]] = []
        while len(listed) < count:
            places = await self._places(start, end)
            answers = await self._answers(places)
            listed += [
                pair
                for pair in answers
                if (tag is None or tag in pair[0].tags) and (model is None or pair[0].model == model)
            ]
            if len(places) < _MAX_LISTED_A_READ:
                break
            start = f"({places[-1]}"
        return listed[:count]

    def statistics(self) -> AnswerStatistics:
        """A snapshot of the counters; what concerns the link concerns all that share it."""
        link = self._link.statistics()
        return AnswerStatistics(
            entries=link.waiting,
            bytes=link.waiting_bytes,
            hits=self._hits,
            misses=self._misses,
            evicted=self._evicted,
            rejected=self._rejected,
            errors=link.errors + self._errors,
            dropped=link.dropped + self._dropped,
        )

    def _scope(self, scope: bytes) -> str:
        return f"{self._prefix}{scope.hex()}"

    def _answer(self, scope: bytes, id: str) -> str:
        return f"{self._scope(scope)}:answer:{id}"

    def _found(self, scope: bytes, id: str, reply: object, held: object) -> tuple[StoredAnswer, History] | None:
        """The entry of a reply, or else the one that waited to be written."""
        if self._link.waiting(("delete", scope, id)) is not None:
            return None
        pair = self._unpack(scope, id, reply)
        if pair is None and isinstance(held, StoredAnswer) and held.expires > self._clock.wall():
            return held, History()
        return pair

    def _unpack(self, scope: bytes, id: str, reply: object) -> tuple[StoredAnswer, History] | None:
        """The entry of a reply; None where there is none, it has expired, or it is not ours."""
        if not isinstance(reply, list) or reply[0] is None:
            # Another type of key under our name, if it is an error: nobody's answer.
            self._errors += isinstance(reply, Exception)
            return None
        try:
            packed, answer_id, expires, good, bad, served = reply
            content = unseal(_MAGIC, _seal_key(scope, id), packed)
            answer = _DECODER.decode(content or b"")
            history = History(float(good or 0), float(bad or 0), int(served or 0))
            ends = float(expires)
            if answer.question.scope != scope or not math.isfinite(ends + history.good + history.bad):
                raise ValueError
        except (ValueError, TypeError):
            # Of another version or damaged: not read twice. msgspec's errors are ValueErrors.
            self._errors += 1
            self.delete(scope, [id])
            return None
        if ends <= self._clock.wall():
            return None
        return msgspec.structs.replace(answer, answer_id=answer_id.decode(), expires=ends), history

    async def _places(self, start: str, end: str) -> list[str]:
        results = await self._read(("ZRANGEBYLEX", self._all, start, end, "LIMIT", 0, _MAX_LISTED_A_READ))
        places = results[0] if isinstance(results[0], list) else []
        return [place.decode("utf-8", "replace") for place in places if isinstance(place, bytes)]

    async def _answers(self, places: list[str]) -> list[tuple[StoredAnswer, History]]:
        named = [_scope_and_id(place) for place in places]
        keys = [pair for pair in named if pair is not None]
        if not keys:
            return []
        results = await self._read(*(("HMGET", self._answer(scope, name), *_FIELDS) for scope, name in keys))
        found = [self._unpack(scope, name, each) for (scope, name), each in zip(keys, results, strict=True)]
        return [pair for pair in found if pair is not None]

    async def _read(self, *commands: Command) -> Results:
        results = await self._link.read(*commands, timeout_s=_LISTING_TIMEOUT_S)
        if results is None:
            raise SharedStoreUnavailable("redis does not say which answers it holds")
        return results

    def _count_evicted(self, results: Results) -> None:
        self._evicted += _sum(results)

    def _count_rejected(self, results: Results) -> None:
        self._rejected += _sum(results)


def _seal_key(scope: bytes, id: str) -> bytes:
    return scope + id.encode()


def _place(scope: bytes, id: str) -> str:
    return f"{scope.hex()}/{id}"


def _scope_and_id(place: str) -> tuple[bytes, str] | None:
    scope, _, name = place.partition("/")
    try:
        return bytes.fromhex(scope), name
    except ValueError:
        return None


def _sum(results: Results) -> int:
    return sum(result for result in results if isinstance(result, int))


def _milliseconds(seconds: float) -> int:
    return max(1, int(1000 * seconds))

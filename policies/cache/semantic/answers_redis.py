"""Answers of the semantic cache in Redis, shared by every replica: one hash for each, under its scope's name.

Redis forgets them by itself: each key has its end, so a `maxmemory` with a `volatile-*` policy bounds the whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random

import msgspec

from backends.clock import Clock
from policies.cache.redis_link import Command, RedisLink, Results, Write
from policies.cache.sealed import seal, unseal
from policies.cache.semantic.contracts import AnswerStatistics, History, StoreAway, StoredAnswer
from policies.cache.semantic.eviction import MAX_BAD_LABELS, spread_expiry

_MAGIC = b"slipstream stored answer 1\n"
_DECODER = msgspec.msgpack.Decoder(StoredAnswer)
_FIELDS = ("packed", "expires", "good", "bad", "served")
_LISTING_TIMEOUT_S = 1.0
_MAX_LISTED_A_READ = 256

# KEYS: the answer, the ids that say the same, all ids. ARGV: id, place among all ids, packed, expires, milliseconds to
# live, answer_id, the prefix of every scope. What lives longest decides for how long the lists live. Two of all ids are
# drawn and dropped where their answer is gone, which is faster than new ones come.
_PUT = """
redis.call('HSET', KEYS[1], 'packed', ARGV[3], 'answer_id', ARGV[6])
if redis.call('HSETNX', KEYS[1], 'expires', ARGV[4]) == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[5]) end
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3], 0, ARGV[2])
for _, key in ipairs({KEYS[2], KEYS[3]}) do
  if redis.call('PTTL', key) < tonumber(ARGV[5]) then redis.call('PEXPIRE', key, ARGV[5]) end
end
for _, place in ipairs(redis.call('ZRANDMEMBER', KEYS[3], 2)) do
  local scope, id = string.match(place, '^(%x+)/(.*)$')
  if not scope or redis.call('EXISTS', ARGV[7] .. scope .. ':answer:' .. id) == 0 then
    redis.call('ZREM', KEYS[3], place)
  end
end
"""

# KEYS: the answer, all ids. ARGV: good, bad, served, 1 for a bad label, the most of these, the scope's prefix, the
# scope. Returns how many entries were removed.
_RECORD = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HINCRBYFLOAT', KEYS[1], 'good', ARGV[1])
redis.call('HINCRBYFLOAT', KEYS[1], 'bad', ARGV[2])
redis.call('HINCRBY', KEYS[1], 'served', ARGV[3])
if redis.call('HINCRBY', KEYS[1], 'bad_labels', ARGV[4]) < tonumber(ARGV[5]) then return 0 end
local same = ARGV[6] .. ':same:' .. (redis.call('HGET', KEYS[1], 'answer_id') or '')
local count = redis.call('DEL', KEYS[1])
for _, id in ipairs(redis.call('SMEMBERS', same)) do
  count = count + redis.call('DEL', ARGV[6] .. ':answer:' .. id)
  redis.call('ZREM', KEYS[2], ARGV[7] .. '/' .. id)
end
redis.call('DEL', same)
return count
"""


class RedisAnswerStore:
    """Keeps each entry under `<prefix>:<scope in hex>:answer:<id>`. `link` is opened and closed by whoever made it."""

    def __init__(self, link: RedisLink, clock: Clock, random: Random) -> None:
        self._link = link
        self._clock = clock
        self._random = random
        self._numbers = itertools.count()
        self._all = f"{link.prefix}:answers"
        self._hits = 0
        self._misses = 0
        self._rejected = 0
        self._errors = 0

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
        if answer.expires <= now:
            return
        scope = answer.question.scope
        expires = spread_expiry(answer.expires, now, self._random)
        answer = msgspec.structs.replace(answer, expires=expires)
        packed = seal(_MAGIC, _seal_key(scope, answer.id), msgspec.msgpack.encode(answer))
        keys = (self._answer(scope, answer.id), f"{self._scope(scope)}:same:{answer.answer_id}", self._all)
        values = (answer.id, _place(scope, answer.id), packed, repr(expires), _milliseconds(expires - now))
        command: Command = ("EVAL", _PUT, len(keys), *keys, *values, answer.answer_id, f"{self._link.prefix}:")
        self._link.write(("put", scope, answer.id), Write((command,), holds=answer), len(packed))

    def record(self, scope: bytes, id: str, *, good: float = 0.0, bad: float = 0.0, served: int = 0) -> None:
        """Have it added to an entry's history soon."""
        keys = (self._answer(scope, id), self._all)
        added = (repr(good), repr(bad), served, int(bad > 0.0))
        command: Command = ("EVAL", _RECORD, len(keys), *keys, *added, MAX_BAD_LABELS, self._scope(scope), scope.hex())
        # Each is written by itself: one that joined another which is on its way would be counted twice.
        self._link.write(("record", str(next(self._numbers))), Write((command,), on_done=self._count_rejected), 0)

    def delete(self, scope: bytes, ids: Sequence[str]) -> None:
        """Have entries forgotten soon."""
        for name in ids:
            commands: tuple[Command, ...] = (
                ("DEL", self._answer(scope, name)),
                ("ZREM", self._all, _place(scope, name)),
            )
            self._link.write(("delete", scope, name), Write(commands, holds=name), 0)

    async def listing(
        self,
        scope: bytes | None,
        count: int,
        *,
        tag: str | None = None,
        model: str | None = None,
        after: tuple[bytes, str] | None = None,
    ) -> Sequence[tuple[StoredAnswer, History]]:
        """Up to `count` entries in the order of scope and id, from behind `after` on. Raises: StoreAway."""
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
            rejected=self._rejected,
            errors=link.errors + self._errors,
            dropped=link.dropped,
        )

    def _scope(self, scope: bytes) -> str:
        return f"{self._link.prefix}:{scope.hex()}"

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
            packed, expires, good, bad, served = reply
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
        return msgspec.structs.replace(answer, expires=ends), history

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
            raise StoreAway("redis does not say which answers it holds")
        return results

    def _count_rejected(self, results: Results) -> None:
        self._rejected += sum(result for result in results if isinstance(result, int))


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


def _milliseconds(seconds: float) -> int:
    return max(1, int(1000 * seconds))

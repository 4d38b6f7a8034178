"""Answers of the semantic cache in the memory of this process: bounded by bytes, the least valuable first out."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Sequence
from random import Random

import msgspec

from backends.clock import Clock
from policies.cache.semantic.answers.eviction import (
    MAX_BAD_LABELS,
    RandomIds,
    RecentUse,
    spread_expiry,
    tokens_saved,
    value_per_byte,
)
from policies.cache.semantic.answers.quotas import Quota
from policies.cache.semantic.contracts import AnswerStatistics, History, Question, StoredAnswer

_OVERHEAD_BYTES = 1280
"""What an entry costs beside its texts, by tracemalloc, rounded up: objects, keys, places in four tables."""
_MAX_DEAD_EXPIRIES = 1024


class _Record(msgspec.Struct):
    answer: StoredAnswer
    history: History
    use: RecentUse
    tenant: str
    num_bytes: int
    num_bad_labels: int = 0


class _Tenant:
    """What one tenant has here."""

    def __init__(self) -> None:
        self.ids = RandomIds()
        self.num_bytes = 0


class MemoryAnswerStore:
    """Keeps at most `max_bytes`, overhead included, and of a tenant no more than `quota` of its scope says.

    Entries that die, however that comes about, are told to `on_gone` with a question of their group, so that the
    index drops them; it must not call back.
    """

    def __init__(
        self,
        max_bytes: int,
        clock: Clock,
        random: Random,
        *,
        quota: Callable[[bytes], Quota] | None = None,
        on_gone: Callable[[Question, Sequence[str]], None] = lambda question, ids: None,
    ) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._random = random
        self._quota = quota or (lambda scope: Quota("", max_bytes))
        self._on_gone = on_gone
        self._records: dict[str, _Record] = {}
        self._all = _Tenant()
        self._tenants: dict[str, _Tenant] = {}
        self._same: dict[tuple[bytes, str], set[str]] = {}
        self._expiries: list[tuple[float, str]] = []
        self._hits = 0
        self._misses = 0
        self._evicted = 0
        self._expired = 0
        self._rejected = 0
        self._dropped = 0

    async def open(self) -> None:
        """Nothing to acquire."""

    async def aclose(self) -> None:
        """Forget everything, without telling."""
        self._records.clear()
        self._all = _Tenant()
        self._tenants.clear()
        self._same.clear()
        self._expiries.clear()

    async def get(self, scope: bytes, ids: Sequence[str]) -> Sequence[tuple[StoredAnswer, History] | None]:
        """Each entry of that scope with its history; None where it is gone."""
        self._expire()
        found = [self._find(scope, name) for name in ids]
        pairs = [None if record is None else (record.answer, record.history) for record in found]
        num_missed = pairs.count(None)
        self._misses += num_missed
        self._hits += len(pairs) - num_missed
        return pairs

    def put(self, answer: StoredAnswer) -> None:
        """Keep it until it expires, give or take a tenth; others go if it needs their place."""
        self._expire()
        now = self._clock.wall()
        quota = self._quota(answer.question.scope)
        num_bytes = _size(answer)
        before = self._records.get(answer.id)
        if answer.expires <= now or num_bytes > min(self._max_bytes, quota.max_bytes):
            self._dropped += 1
            return
        if before is not None and before.answer.question.group != answer.question.group:
            # An id has one group for good: another's entry is not for the taking.
            self._dropped += 1
            return
        if before is None:
            answer = msgspec.structs.replace(answer, expires=spread_expiry(answer.expires, now, self._random))
            record = _Record(answer, History(), RecentUse(1.0, now), quota.tenant, num_bytes)
            heapq.heappush(self._expiries, (answer.expires, answer.id))
        else:
            self._forget(before)
            answer = msgspec.structs.replace(answer, expires=before.answer.expires)
            record = _Record(answer, before.history, before.use, quota.tenant, num_bytes, before.num_bad_labels)
        self._keep(record)
        self._make_room(answer.id, quota)

    def record(self, scope: bytes, id: str, *, good: float = 0.0, bad: float = 0.0, served: int = 0) -> None:
        """Add to an entry's history; two bad labels, of any weight, remove it and all of its answer_id."""
        record = self._find(scope, id)
        if record is None:
            return
        history = record.history
        record.history = History(history.good + good, history.bad + bad, history.served + served)
        if served:
            record.use.count(self._clock.wall())
        record.num_bad_labels += bad > 0.0
        if record.num_bad_labels >= MAX_BAD_LABELS:
            doomed = sorted(self._same[scope, record.answer.answer_id])
            self._rejected += len(doomed)
            self._bury(self._records[each] for each in doomed)

    def smaller(self, scope: bytes, one: str, other: str) -> tuple[list[str], str]:
        """Of two answers the entries of that which has fewer, and the answer_id of that which has more."""
        if one == other:
            return [], one
        fewer, more = sorted((one, other), key=lambda answer_id: len(self._same.get((scope, answer_id), ())))
        return sorted(self._same.get((scope, fewer), ())), more

    def unite(self, scope: bytes, one: str, other: str) -> None:
        """All entries of two answer_ids have that of more of them from now on."""
        names, into = self.smaller(scope, one, other)
        for name in names:
            record = self._records[name]
            self._forget(record)
            record.answer = msgspec.structs.replace(record.answer, answer_id=into)
            self._keep(record)

    def delete(self, scope: bytes, ids: Sequence[str]) -> None:
        """Forget entries."""
        # An id may be named twice, and dies once.
        found = (self._find(scope, name) for name in dict.fromkeys(ids))
        self._bury([record for record in found if record is not None])

    async def listing(
        self,
        scope: bytes | None,
        count: int,
        *,
        tag: str | None = None,
        model: str | None = None,
        after: tuple[bytes, str] | None = None,
    ) -> Sequence[tuple[StoredAnswer, History]]:
        """Up to `count` entries in the order of scope and id, from behind `after` on."""
        self._expire()
        wanted = (
            record
            for record in self._records.values()
            if (scope is None or record.answer.question.scope == scope)
            and (tag is None or tag in record.answer.tags)
            and (model is None or record.answer.model == model)
            and (after is None or _order(record) > after)
        )
        return [(record.answer, record.history) for record in heapq.nsmallest(count, wanted, key=_order)]

    def statistics(self) -> AnswerStatistics:
        """A snapshot of the counters."""
        return AnswerStatistics(
            entries=len(self._records),
            bytes=self._all.num_bytes,
            hits=self._hits,
            misses=self._misses,
            evicted=self._evicted,
            expired=self._expired,
            rejected=self._rejected,
            dropped=self._dropped,
        )

    def _find(self, scope: bytes, id: str) -> _Record | None:
        record = self._records.get(id)
        return record if record is not None and record.answer.question.scope == scope else None

    def _keep(self, record: _Record) -> None:
        answer = record.answer
        self._records[answer.id] = record
        self._same.setdefault((answer.question.scope, answer.answer_id), set()).add(answer.id)
        for holder in (self._all, self._tenants.setdefault(record.tenant, _Tenant())):
            holder.ids.add(answer.id)
            holder.num_bytes += record.num_bytes

    def _forget(self, record: _Record) -> None:
        answer = record.answer
        del self._records[answer.id]
        same = self._same[answer.question.scope, answer.answer_id]
        same.discard(answer.id)
        if not same:
            del self._same[answer.question.scope, answer.answer_id]
        tenant = self._tenants[record.tenant]
        for holder in (self._all, tenant):
            holder.ids.discard(answer.id)
            holder.num_bytes -= record.num_bytes
        if not tenant.ids:
            del self._tenants[record.tenant]

    def _bury(self, records: Iterable[_Record]) -> None:
        for record in records:
            self._forget(record)
            self._on_gone(record.answer.question, [record.answer.id])

    def _make_room(self, newest: str, quota: Quota) -> None:
        """Let the least valuable go until everything fits; never the newest, which has had no time to be of use."""
        tenant = self._tenants[quota.tenant]
        for holder, max_bytes in ((tenant, quota.max_bytes), (self._all, self._max_bytes)):
            while holder.num_bytes > max_bytes:
                now = self._clock.wall()
                drawn = [self._records[name] for name in holder.ids.sample(self._random) if name != newest]
                if drawn:
                    self._evicted += 1
                    self._bury([min(drawn, key=lambda record: _value(record, now))])

    def _expire(self) -> None:
        now = self._clock.wall()
        while self._expiries and self._expiries[0][0] <= now:
            _, name = heapq.heappop(self._expiries)
            record = self._records.get(name)
            if record is not None and record.answer.expires <= now:
                self._expired += 1
                self._bury([record])
        if len(self._expiries) > 2 * len(self._records) + _MAX_DEAD_EXPIRIES:
            self._expiries = [(record.answer.expires, name) for name, record in self._records.items()]
            heapq.heapify(self._expiries)


def _value(record: _Record, now: float) -> float:
    return value_per_byte(record.use, record.history, tokens_saved(record.answer.entry), record.num_bytes, now)


def _order(record: _Record) -> tuple[bytes, str]:
    return record.answer.question.scope, record.answer.id


def _size(answer: StoredAnswer) -> int:
    texts = (answer.id, answer.answer_id, answer.model, answer.owner, answer.question.text, *answer.tags)
    return len(answer.entry.body) + sum(map(sys.getsizeof, texts)) + _OVERHEAD_BYTES

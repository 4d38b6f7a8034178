"""The replay itself: the live cache's own stages over the log, in order, with the log as the upstream."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random

import msgspec

from backends.operations import Operation
from backends.protocol import Backend, CacheOutcome, Call, Facts
from policies.cache.entry import AnswerForm, Entry
from policies.cache.exact import ExactCache
from policies.cache.semantic.answer_text import text_of
from policies.cache.semantic.answers.memory import MemoryAnswerStore
from policies.cache.semantic.answers.quotas import Quotas
from policies.cache.semantic.contracts import Decider, EncoderBusy, ReadingEncoder
from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.verified import Verified
from policies.cache.semantic.index.memory import MemoryIndex
from policies.cache.semantic.learning.comparators import AnswerVerdict, Comparison, verdict_of
from policies.cache.semantic.learning.decisions import LearnedDecisions
from policies.cache.semantic.learning.rewording import Rewording
from policies.cache.semantic.log_replay.exchanges import LoggedExchange
from policies.cache.semantic.log_replay.stand_ins import LogClock, LoggedAnswers, ReplayedLookup, WatchingDecider
from policies.cache.semantic.question import Ineligible
from policies.cache.semantic.semantic import SemanticCache, SemanticParts
from policies.cache.semantic.settings import SemanticPolicy
from policies.cache.semantic.vector_space import VectorSpace
from policies.cache.settings import CachePolicy
from policies.cache.store_memory import MemoryEntryStore

_UNHURRIED_S = 60.0
"""For the limits on encoding and searching: what a busy machine would miss says nothing about the log."""

_INELIGIBLE = frozenset(reason.value for reason in Ineligible)


class LogReplayResult(msgspec.Struct):
    """What the replay saw. `served` has an item for each look-up, in order: a verdict, or None for a miss.

    `seen` are the look-ups' proposals where every answer is kept, for static thresholds. `compared` are the comparisons
    that the decision learned from, `num_labels` those of the tenant with the most; `num_checks` are the served answers
    that were checked. `again`: what was asked again in the very same words, by whether the log answers it as before;
    `num_verbatim` of these to the letter.
    """

    num_exchanges: int = 0
    num_exact: int = 0
    left_alone: Counter[str] = msgspec.field(default_factory=Counter)
    missed: Counter[str] = msgspec.field(default_factory=Counter)
    served: list[AnswerVerdict | None] = []
    seen: list[ReplayedLookup] = []
    compared: Counter[AnswerVerdict] = msgspec.field(default_factory=Counter)
    num_labels: int = 0
    num_checks: int = 0
    again: Counter[AnswerVerdict] = msgspec.field(default_factory=Counter)
    num_verbatim: int = 0
    names_tenants: bool = False
    names_keys: bool = False


class LogReplay:
    """One log through one route's cache. `max_bytes` bounds the stored answers; `run` opens and closes the `encoder`.

    Two stages see every look-up: one that serves within the bound, and one that serves nothing and keeps everything.
    Their entries are of two routes, so neither sees the other's.
    """

    def __init__(
        self, policy: CachePolicy, encoder: ReadingEncoder, *, route: str, max_bytes: int, seed: int = 0
    ) -> None:
        assert policy.semantic is not None, "asked before"
        self._semantic = policy.semantic
        self._policy = _unhurried(policy, policy.semantic)
        self._route = route
        self._max_bytes = max_bytes
        self._random = Random(seed)
        self._clock = LogClock()
        self._log = LoggedAnswers()
        self._comparison = Comparison(encoder, None, Rewording())
        self._space = VectorSpace(
            encoder, lambda opened: MemoryIndex(opened.dimension, opened.fingerprint, self._clock)
        )
        self._replayed = LogReplayResult()
        self._verified = self._stage(self._decider, route)
        self._watching = self._stage(
            lambda: WatchingDecider(self._replayed.seen, guard_is_veto=self._semantic.guard == "veto"),
            f"{route}, watching",
        )
        self._outer: Backend = self._verified
        if policy.exact.enabled:
            store = MemoryEntryStore(max_bytes, self._clock)
            self._outer = ExactCache(self._verified, self._policy, store, self._clock, route)

    async def run(self, exchanges: Iterable[LoggedExchange], note: Callable[[int], None]) -> LogReplayResult:
        """Every exchange, one after the other; `note` is told how many are done. Raises: ConfigurationError."""
        try:
            await self._space.open()
            await self._outer.open()
            await self._watching.open()
            for exchange in exchanges:
                await self._ask(exchange)
                note(self._replayed.num_exchanges)
        finally:
            await self._watching.aclose()
            await self._outer.aclose()
            await self._space.aclose()
        tallied = self._verified.take_tally()
        self._replayed.num_checks = tallied.shadows
        for (_, verdict), count in tallied.labels.items():
            self._replayed.compared[verdict] += count
        self._replayed.num_labels = max((one.state().labels for one in self._verified.book.all()), default=0)
        return self._replayed

    async def _ask(self, exchange: LoggedExchange) -> None:
        replayed = self._replayed
        self._clock.advance(exchange)
        logged = msgspec.json.encode(exchange.response)
        self._log.expect(logged)
        call = self._call(exchange)
        reply = await self._outer.send(call)
        await self._verified.settle()
        replayed.num_exchanges += 1
        replayed.names_tenants |= bool(exchange.tenant)
        replayed.names_keys |= bool(exchange.key)
        facts = call.facts.semantic
        if facts is None:
            replayed.num_exact += 1
            await self._note_again(reply.body, logged)
        elif facts.reason in _INELIGIBLE:
            replayed.left_alone[facts.reason] += 1
        else:
            await self._watching.send(self._call(exchange))
            await self._watching.settle()
            for _, verdict in self._watching.take_tally().labels:
                replayed.seen[-1].verdict = verdict
            is_served = call.facts.cache is CacheOutcome.SEMANTIC
            replayed.served.append(await self._compare(reply.body or b"", logged) if is_served else None)
            if not is_served:
                replayed.missed[facts.reason] += 1

    async def _note_again(self, before: bytes | None, logged: bytes) -> None:
        """How the log answers the very same call another time: by its model's own wording, nothing else."""
        if before is not None:
            left, right = _text(before), _text(logged)
            self._replayed.num_verbatim += left is not None and left == right
            self._replayed.again[await self._compare(before, logged)] += 1

    async def _compare(self, served: bytes, logged: bytes) -> AnswerVerdict:
        """Whether what was served says what the log says."""
        left, right = _text(served), _text(logged)
        if left is None or right is None:
            return AnswerVerdict.UNKNOWN
        try:
            return verdict_of(await self._comparison.compare("", left, right, may_ask=False))
        except EncoderBusy:
            # Its process has died and is started anew.
            return AnswerVerdict.UNKNOWN

    def _call(self, exchange: LoggedExchange) -> Call:
        body = exchange.request
        user = body.get("user")
        return Call(
            operation=Operation.CHAT,
            path="/chat/completions",
            raw=b"",
            body=body,
            model=body.get("model", ""),
            deadline=math.inf,
            facts=Facts(),
            tenant=exchange.tenant,
            key_id=exchange.key,
            user=user if isinstance(user, str) else "",
            route=self._route,
        )

    def _stage(self, fresh: Callable[[], Decider], route: str) -> SemanticCache:
        quotas = Quotas(self._max_bytes)
        answers = MemoryAnswerStore(
            self._max_bytes, self._clock, self._random, quota=quotas, on_gone=self._space.forget
        )
        parts = SemanticParts(self._space, answers, LearnedDecisions(fresh, None), quotas, self._clock, self._random)
        return SemanticCache(self._log, self._policy, parts, route=route)

    def _decider(self) -> Decider:
        semantic = self._semantic
        rate = semantic.max_wrong_hit_rate if semantic.min_precision is None else None
        bound = Bound(max_wrong_hit_rate=rate, min_precision=semantic.min_precision)
        return Verified(bound, self._random, guard=semantic.guard)


def _text(body: bytes) -> str | None:
    return text_of(Entry(AnswerForm.JSON, body, b"application/json", 0.0))


def _unhurried(policy: CachePolicy, semantic: SemanticPolicy) -> CachePolicy:
    """The policy as if it were switched on, on a machine that has time."""
    return policy.model_copy(
        update={
            "exact": policy.exact.model_copy(update={"coalesce": "off"}),
            "semantic": semantic.model_copy(
                update={"mode": "verified", "encode_timeout": _UNHURRIED_S, "search_timeout": _UNHURRIED_S}
            ),
        }
    )

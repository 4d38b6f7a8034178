"""Puts the semantic caches of a policy together; called by the assembly only where a route has one.

What a reload leaves as it was is taken over: encoder, index, stored answers, and what decisions have learned.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

from backends.clock import Clock
from backends.protocol import Backend, Timeouts
from policies.cache.redis_link import RedisLink, build_redis_link
from policies.cache.semantic.admin import Administration
from policies.cache.semantic.answers.file import FileAnswerStore
from policies.cache.semantic.answers.memory import MemoryAnswerStore
from policies.cache.semantic.answers.quotas import Quotas
from policies.cache.semantic.answers.redis import RedisAnswerStore
from policies.cache.semantic.contracts import AnswerStore, Decider, Encoder, Index, Question, ReadingEncoder
from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.features import FEATURES
from policies.cache.semantic.decision.static import Static
from policies.cache.semantic.decision.verified import Verified
from policies.cache.semantic.encoder.batched import BatchingEncoder, TextModel
from policies.cache.semantic.encoder.child import Load
from policies.cache.semantic.encoder.process import ProcessModel
from policies.cache.semantic.encoder.upstream import BackendModel
from policies.cache.semantic.folder_lock import FolderLock
from policies.cache.semantic.index.memory import MemoryIndex
from policies.cache.semantic.index.redis import RedisIndex
from policies.cache.semantic.index.shared import SharedIndexes
from policies.cache.semantic.learning.decisions import LearnedDecisions
from policies.cache.semantic.learning.judge import RouteJudge
from policies.cache.semantic.learning.state_file import StateFile
from policies.cache.semantic.learning.state_redis import RedisState
from policies.cache.semantic.semantic import SemanticCache, SemanticParts
from policies.cache.semantic.settings import EncoderPolicy, SemanticPolicy
from policies.cache.semantic.vector_space import VectorSpace
from policies.cache.settings import CachePolicy
from policies.cache.steady_wall import SteadyClock
from policies.prices.price import Price
from policies.prices.source import PriceSource
from policies.schema import RoutePolicy, StoresPolicy
from policies.speculation.settings import PredictedPolicy

_LOGGER = logging.getLogger(__name__)
_STATE_VERSION = f"3:{','.join(FEATURES)}"
"""Decisions of other features have nothing to learn from each other."""

_DECISION_FIELDS = ("mode", "max_wrong_hit_rate", "min_precision", "threshold", "guard")
"""What a decision is made of: where these stay, a reload takes it over as it is."""


class SharedStores:
    """What outlives policies: the stored answers of all routes, what was learned, and the clock that dates both."""

    def __init__(self, stores: StoresPolicy, clock: Clock, random: Random) -> None:
        # Redis ends what it keeps by itself, and whoever shares it goes by the wall.
        self.clock = clock = clock if stores.redis is not None else SteadyClock(clock)
        # Redis has a bound of its own.
        self.quotas = Quotas(stores.semantic.max_size if stores.redis is None else sys.maxsize)
        self.spaces: list[VectorSpace] = []
        self.indexes = SharedIndexes()
        self.prices: Mapping[str, PriceSource | None] = {}
        """Of encoders' backends, as the newest policy has them: the encoders outlive policies too."""
        self.origin = f"{random.getrandbits(64):016x}"
        self.link: RedisLink | None = None
        self.answers: AnswerStore
        self.states: StateFile | RedisState | None = None
        self.lock: FolderLock | None = None
        if stores.redis is not None:
            self.link = build_redis_link(stores.redis, clock, part="semantic", name="redis of the semantic cache")
            self.answers = RedisAnswerStore(self.link, clock, random, quota=self.quotas)
            self.states = RedisState(self.link, clock, origin=self.origin, version=_STATE_VERSION)
        else:
            make = partial(_memory, stores.semantic.max_size, clock, random, self.quotas)
            self.answers = make(self._forget)
            if stores.semantic.folder is not None:
                folder = Path(stores.semantic.folder)
                self.lock = FolderLock(folder)
                self.answers = FileAnswerStore(
                    folder / "answers.sqlite", make, clock, self._forget, is_ours=self.lock.take
                )
                self.states = StateFile(folder / "decisions", clock, is_ours=self.lock.take)

    async def open(self) -> None:
        """Connect, or load what was written down."""
        if self.link is not None:
            await self.link.open()
        if self.lock is not None and not self.lock.take():
            _LOGGER.error(
                "stores.semantic.folder is used by another gateway: this one begins with an empty semantic cache and "
                "keeps nothing of it over a restart; give each a folder of its own, or use stores.redis"
            )
        await self.answers.open()
        if self.states is not None:
            await self.states.open()

    async def aclose(self) -> None:
        """Write down what is kept. Safe to call twice."""
        if self.states is not None:
            await self.states.aclose()
        await self.answers.aclose()
        if self.link is not None:
            await self.link.aclose()
        if self.lock is not None:
            self.lock.release()

    def price_of(self, backend: str, model: str) -> Price | None:
        """What an encoder's backend takes; None where nobody knows."""
        prices = self.prices.get(backend)
        return prices.of(model) if prices is not None else None

    def _forget(self, question: Question, ids: Sequence[str]) -> None:
        for space in self.spaces:
            space.forget(question, ids)


def _memory(
    max_bytes: int, clock: Clock, random: Random, quotas: Quotas, on_gone: Callable[[Question, Sequence[str]], None]
) -> MemoryAnswerStore:
    return MemoryAnswerStore(max_bytes, clock, random, quota=quotas, on_gone=on_gone)


class Semantics:
    """The semantic caches of one policy, one for each route that asks for one; `previous` is the policy before it.

    `shared`, `spaces` and `books` are for the next one.
    """

    def __init__(self, stores: StoresPolicy, clock: Clock, random: Random, previous: Semantics | None = None) -> None:
        self._random = random
        self._stores = stores
        self._previous = previous
        self.shared: SharedStores = previous.shared if previous is not None else SharedStores(stores, clock, random)
        self._clock = self.shared.clock
        self.spaces: dict[tuple[EncoderPolicy, Backend | None], VectorSpace] = {}
        self.books: dict[str, tuple[Mapping[str, object], LearnedDecisions]] = {}
        self._stages: dict[str, SemanticCache] = {}
        self.administration = Administration(self.shared.answers, self._stages)

    @property
    def has_folder(self) -> bool:
        """Whether what it keeps is in a folder of this process."""
        return self.shared.lock is not None

    @property
    def resources(self) -> tuple[SharedStores | VectorSpace, ...]:
        """What is opened before the stages and closed after them."""
        return (self.shared, *self.spaces.values())

    def stage(
        self,
        route: RoutePolicy,
        inner: Backend,
        leaves: Mapping[str, Backend],
        judge: tuple[Backend, Timeouts] | None,
        *,
        cache: CachePolicy,
    ) -> SemanticCache:
        """The semantic cache of a route whose policy has one; `judge` is the stack that its policy's judge is.

        `cache` is what the route says of its caches.
        """
        policy = cache.semantic
        assert policy is not None, "asked before"
        parts = SemanticParts(
            space=self._space_of(policy.encoder, leaves),
            answers=self.shared.answers,
            book=self._book(route.name, policy),
            quotas=self.shared.quotas,
            clock=self._clock,
            random=self._random,
        )
        asked = (
            RouteJudge(*judge, policy.judge, self._clock) if judge is not None and policy.judge is not None else None
        )
        stage = self._stages[route.name] = SemanticCache(
            inner, cache, parts, route=route.name, judge=asked, predict_from=_predict_from(route)
        )
        return stage

    def encoder(self, policy: EncoderPolicy, leaves: Mapping[str, Backend]) -> ReadingEncoder:
        """An encoder for who has no cache, shared with the caches that encode alike."""
        return self._space_of(policy, leaves).encoder

    def complete(self, prices: Mapping[str, PriceSource | None]) -> None:
        """Every stage is made: nothing more is taken over from the policy before, which is let go of. `prices`: of
        backends.
        """
        self._previous = None
        self.shared.prices = prices
        self.shared.spaces = list(self.spaces.values())

    def _space_of(self, encoder: EncoderPolicy, leaves: Mapping[str, Backend]) -> VectorSpace:
        key = (encoder, leaves[encoder.backend] if encoder.backend is not None else None)
        if key not in self.spaces:
            before = self._previous.spaces.get(key) if self._previous is not None else None
            self.spaces[key] = before or VectorSpace(
                BatchingEncoder(self._model(encoder, leaves), self._clock, max_waiting=encoder.max_waiting),
                partial(_index, self._stores, self.shared, self._clock),
            )
        return self.spaces[key]

    def _model(self, policy: EncoderPolicy, leaves: Mapping[str, Backend]) -> TextModel:
        if policy.type == "openai":
            assert policy.backend is not None, "the schema asks for it"
            assert policy.model is not None, "the schema asks for it"
            assert policy.dimension is not None, "the schema asks for it"
            backend = leaves[policy.backend]
            price_of = partial(self.shared.price_of, policy.backend)
            return BackendModel(
                backend,
                policy.model,
                dimension=policy.dimension,
                clock=self._clock,
                price_of=price_of,
                words=ProcessModel(Load(kind="words"), self._clock),
            )
        folder = self._stores.semantic.folder
        load = Load(
            model=policy.model,
            kind="onnx" if policy.type == "onnx" else "torch",
            threads=policy.threads,
            cache=str(Path(folder) / "onnx") if folder is not None else None,
        )
        return ProcessModel(load, self._clock)

    def _book(self, route: str, policy: SemanticPolicy) -> LearnedDecisions:
        """The route's book: the one before where the decision stays what it is, else a new one with what it knew."""
        fields = {name: getattr(policy, name) for name in _DECISION_FIELDS}
        before = self._previous.books.get(route) if self._previous is not None else None
        if before is not None and before[0] == fields:
            self.books[route] = before
        else:
            dumps = before[1].dumps() if before is not None else None
            fresh = partial(_decider, self._random, policy)
            self.books[route] = (fields, LearnedDecisions(fresh, self.shared.states, dumps))
        return self.books[route][1]


def _index(stores: StoresPolicy, shared: SharedStores, clock: Clock, encoder: Encoder) -> Index:
    """The index of an encoder that is open. No method: the next policy takes it over, and must not keep this one."""
    make = partial(_new_index, stores, shared, clock, encoder.fingerprint, encoder.dimension)
    return shared.indexes.share(encoder.fingerprint, make)


def _new_index(stores: StoresPolicy, shared: SharedStores, clock: Clock, fingerprint: str, dimension: int) -> Index:
    is_kept = shared.lock is not None and shared.lock.take()
    folder = stores.semantic.folder if is_kept else None
    name = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
    memory = MemoryIndex(
        dimension, fingerprint, clock, snapshot=Path(folder) / f"vectors-{name}" if folder is not None else None
    )
    if shared.link is None:
        return memory
    return RedisIndex(
        shared.link,
        memory,
        clock,
        origin=shared.origin,
        fingerprint=fingerprint,
        dimension=dimension,
        ttl_s=shared.quotas.ttl_s,
    )


def _decider(random: Random, policy: SemanticPolicy) -> Decider:
    if policy.mode == "static":
        return Static(policy.threshold, random, guard=policy.guard)
    rate = policy.max_wrong_hit_rate if policy.min_precision is None else None
    bound = Bound(max_wrong_hit_rate=rate, min_precision=policy.min_precision)
    mode: Literal["observe", "verified"] = "observe" if policy.mode == "observe" else "verified"
    return Verified(bound, random, mode=mode, guard=policy.guard)


def _predict_from(route: RoutePolicy) -> float | None:
    speculative = route.speculative
    if isinstance(speculative, PredictedPolicy) and "cache" in speculative.sources:
        return speculative.near
    return None

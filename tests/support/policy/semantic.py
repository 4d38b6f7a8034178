"""Small real parts for tests of the semantic cache: an encoder of words, a plain index, a fixed decision."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import msgspec
import numpy as np

from backends.charges.charge import Charge
from backends.clock import Clock
from backends.protocol import Backend, Call
from policies.cache.semantic.answers.memory import MemoryAnswerStore
from policies.cache.semantic.answers.quotas import Quotas
from policies.cache.semantic.contracts import (
    Decider,
    Decision,
    EncoderBusy,
    KnownNeighbour,
    Neighbour,
    PolicyState,
    Proposal,
    Question,
    StateStore,
    Vector,
)
from policies.cache.semantic.learning.decisions import LearnedDecisions
from policies.cache.semantic.learning.judge import RouteJudge
from policies.cache.semantic.sameness.reader import Reader
from policies.cache.semantic.semantic import SemanticCache, SemanticParts
from policies.cache.semantic.vector_space import VectorSpace
from policies.cache.settings import CachePolicy
from tests.support.calls import make_call

DIMENSION = 64
STORE_BYTES = 64 * 1024**2


class WordEncoder:
    """The sum of a random vector for each word: the more words two texts share, the nearer they are."""

    dimension = DIMENSION
    fingerprint = "words:1"

    def __init__(self) -> None:
        self.is_busy = False
        self.is_reader_busy = False
        self.num_encoded = self.num_compared = 0
        self.may_compare = asyncio.Event()
        self.may_compare.set()
        self.sameness: float | None = None
        """Log odds that a test wants for every pair of answers, where given."""
        self._reader = Reader(None)

    async def open(self) -> None:
        """Nothing to load."""

    async def aclose(self) -> None:
        """Nothing to release."""

    async def encode(self, text: str, told: Callable[[Charge], None] | None = None) -> Vector:
        """The vector of a text."""
        if self.is_busy:
            raise EncoderBusy
        self.num_encoded += 1
        vector = np.zeros(DIMENSION, np.float32)
        for word in text.lower().split():
            vector += _vector_of(word)
        return vector / max(float(np.linalg.norm(vector)), 1e-9)

    async def compare(self, left: str, right: str) -> float | None:
        """By words, here."""
        if self.is_busy or self.is_reader_busy:
            raise EncoderBusy
        self.num_compared += 1
        await self.may_compare.wait()
        return self._reader.compare(left, right).log_odds if self.sameness is None else self.sameness


@cache
def _vector_of(word: str) -> Vector:
    seed = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)


class FlatIndex:
    """Every vector of a group, compared one by one."""

    def __init__(self) -> None:
        self.groups: dict[bytes, dict[str, Vector]] = {}

    async def open(self) -> None:
        """Nothing to load."""

    async def aclose(self) -> None:
        """Nothing to write."""

    async def search(self, question: Question, vector: Vector, count: int) -> Sequence[Neighbour]:
        """The nearest of the question's group."""
        near = [Neighbour(name, float(other @ vector)) for name, other in self.groups.get(question.group, {}).items()]
        return sorted(near, key=lambda neighbour: -neighbour.similarity)[:count]

    def add(self, question: Question, id: str, vector: Vector) -> None:
        """Keep it."""
        self.groups.setdefault(question.group, {})[id] = vector

    def remove(self, question: Question, ids: Sequence[str]) -> None:
        """Forget it."""
        for name in ids:
            self.groups.get(question.group, {}).pop(name, None)


_FixedState = tuple[int, list[tuple[str, float, float, float | None]]]


class FixedDecider:
    """Serves the nearest candidate from a cosine on; shadows every one where `shadow_probability` is not 0."""

    def __init__(self, threshold: float = 0.7, shadow_probability: float = 0.0) -> None:
        self.threshold = threshold
        self.shadow_probability = shadow_probability
        self.lookups = 0
        self.given: list[tuple[str, float, float, float | None]] = []

    def propose(self, text: str, candidates: Sequence[KnownNeighbour]) -> Proposal | None:
        """The nearest."""
        return Proposal(candidates[0], (candidates[0].similarity,), guarded=False) if candidates else None

    def decide(self, proposal: Proposal | None) -> Decision:
        """By its similarity."""
        self.lookups += 1
        if proposal is None:
            return Decision(False, False, 0.0, float("-inf"), self.threshold, "no_candidate")
        score = proposal.candidate.similarity
        serve = score >= self.threshold
        shadow = serve and self.shadow_probability > 0
        reason = "static" if serve else "below_threshold"
        return Decision(serve, shadow, self.shadow_probability, score, self.threshold, reason)

    def label(
        self, proposal: Proposal, *, rightness: float, weight: float, served_at: float | None, is_explained: bool
    ) -> None:
        """Remember it."""
        self.given.append((proposal.candidate.id, rightness, weight, served_at))

    def gives_up(self, answer_id: str) -> bool:
        """Never."""
        return False

    def state(self) -> PolicyState:
        """Counts."""
        return PolicyState("static", len(self.given), self.lookups, 0, self.threshold, 0.0, 0.0, 0.0)

    def dump(self) -> bytes:
        """Everything."""
        return msgspec.json.encode((self.lookups, self.given))

    def load(self, dumped: bytes) -> None:
        """Take it over."""
        try:
            self.lookups, given = msgspec.json.decode(dumped, type=_FixedState)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from error
        self.given = given


class MemoryStates:
    """What was saved, in a dict."""

    def __init__(self) -> None:
        self.saved: dict[bytes, bytes] = {}

    async def load(self, scope: bytes) -> bytes | None:
        """What was saved last."""
        return self.saved.get(scope)

    def share(self, scope: bytes, decider: Decider) -> Decider:
        """Nobody else learns with it."""
        return decider

    def save(self, scope: bytes, dumped: bytes) -> None:
        """Keep it."""
        self.saved[scope] = dumped


class Stage:
    """A semantic cache with its parts at hand. `cache` is the rest of the `cache` section of a policy file."""

    def __init__(
        self,
        inner: Backend,
        clock: Clock,
        *,
        decider: FixedDecider | None = None,
        states: StateStore | None = None,
        cache: dict[str, Any] | None = None,
        judge: RouteJudge | None = None,
        predict_from: float | None = None,
        **semantic: Any,
    ) -> None:
        self.decider = decider or FixedDecider()
        self.encoder = WordEncoder()
        self.index = FlatIndex()
        self.quotas = Quotas(STORE_BYTES)
        random = Random(1)
        self.space = VectorSpace(self.encoder, lambda encoder: self.index)
        self.answers = MemoryAnswerStore(
            STORE_BYTES,
            clock,
            random,
            quota=self.quotas,
            on_gone=lambda question, ids: self.space.forget(question, ids),
        )
        self.deciders: list[Decider] = [self.decider]
        self.book = LearnedDecisions(self._fresh, states)
        settings = {"mode": "static", "encode_timeout": "5s", "search_timeout": "5s", **semantic}
        policy = CachePolicy.model_validate({**(cache or {}), "semantic": settings})
        parts = SemanticParts(self.space, self.answers, self.book, self.quotas, clock, random)
        self.cache = SemanticCache(inner, policy, parts, route="route", judge=judge, predict_from=predict_from)

    async def open(self) -> Stage:
        """Open everything."""
        await self.space.open()
        await self.answers.open()
        await self.cache.open()
        return self

    async def aclose(self) -> None:
        """Close everything."""
        await self.cache.aclose()
        await self.answers.aclose()
        await self.space.aclose()

    async def ask(self, call: Call) -> tuple[dict[str, str], bytes]:
        """Send a call and read its answer to the end, then let the stage learn: headers and body."""
        reply = await self.cache.send(call)
        pieces = [reply.body or b""]
        if reply.stream is not None:
            while piece := await reply.stream.read():
                pieces.append(piece)
        await reply.aclose()
        await self.cache.settle()
        return {name.decode(): value.decode() for name, value in reply.headers}, b"".join(pieces)

    def _fresh(self) -> Decider:
        return self.deciders.pop() if self.deciders else FixedDecider(self.decider.threshold)


def question(text: str, **fields: Any) -> Call:
    """A call that may be answered semantically."""
    extra = {"temperature": 0, **fields.pop("extra", {})}
    return make_call(text, extra=extra, tenant=fields.pop("tenant", "red"), **fields)

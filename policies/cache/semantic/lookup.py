"""One look-up: a question's vector, its neighbours, what is known of them, and the decision. Never raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from backends.clock import Clock
from backends.errors import SlipstreamError
from backends.protocol import Call
from policies.cache.control import Control
from policies.cache.semantic.contracts import (
    AnswerStore,
    Decision,
    EncoderBusy,
    History,
    KnownNeighbour,
    Neighbour,
    Proposal,
    Question,
    StoredAnswer,
    Vector,
)
from policies.cache.semantic.decision.vote import NEIGHBOURS
from policies.cache.semantic.learning.labels import Learning
from policies.cache.semantic.settings import SemanticPolicy
from policies.cache.semantic.tally import SemanticTally
from policies.cache.semantic.time_limit import within
from policies.cache.semantic.vector_space import VectorSpace

_logger = logging.getLogger(__name__)


class LookupResult(msgspec.Struct):
    """What a look-up found. `reason` says why nothing is served, or by what right something is.

    `found` are the neighbours that this call might be given, nearest first; `answer` is the proposal's. Without a
    `vector` there is nothing to learn from what the backend says either. `serves` the proposal's answer; `weight` and
    `served_at` are those of its label.
    """

    question: Question
    learning: Learning
    reason: str
    vector: Vector | None = None
    found: list[tuple[StoredAnswer, History, float]] = []
    proposal: Proposal | None = None
    answer: StoredAnswer | None = None
    decision: Decision | None = None
    serves: bool = False
    weight: float = 1.0
    served_at: float | None = None

    @property
    def matters(self) -> bool:
        """Whether the proposal scored well enough to be served."""
        return self.decision is not None and self.decision.score >= self.decision.threshold


class Lookups:
    """Looks questions of one route up. A neighbour of another group is never shown to anyone, whoever names it."""

    def __init__(
        self, space: VectorSpace, answers: AnswerStore, policy: SemanticPolicy, clock: Clock, *, is_public: bool
    ) -> None:
        self._space = space
        self._answers = answers
        self._policy = policy
        self._clock = clock
        self._is_public = is_public

    async def find(self, call: Call, looked: LookupResult, control: Control, tally: SemanticTally) -> None:
        """Fill in what is found, and count the look-up with the decision. A failure on the way is a named miss."""
        began_at = self._clock.now()
        try:
            await self._find(call, looked, control, tally)
        except EncoderBusy:
            looked.reason = "encoder_busy"
        except TimeoutError:
            looked.reason = "encoder_slow" if looked.vector is None else "search_slow"
        except SlipstreamError as error:
            looked.reason = "failed"
            _logger.warning("a look-up in the semantic cache failed: %s", error.message)
        except Exception:
            # A cache that fails must not fail the request.
            looked.reason = "failed"
            _logger.exception("a look-up in the semantic cache failed")
        call.facts.passed("cache.semantic", began_at, self._clock, reason=looked.reason)

    async def search(self, call: Call, looked: LookupResult, control: Control, tally: SemanticTally) -> bool:
        """The vector and the neighbours. False where the stores cannot say. Raises: EncoderBusy, TimeoutError."""
        question = looked.question
        began = self._clock.now()
        looked.vector = await within(
            self._policy.encode_timeout, self._space.encoder.encode(question.text, call.facts.extra)
        )
        encoded = self._clock.now()
        tally.took("encode", encoded - began)
        neighbours, pairs = await within(self._policy.search_timeout, self._find_near(question, looked.vector))
        tally.took("search", self._clock.now() - encoded)
        if len(pairs) != len(neighbours):
            return False
        now = self._clock.wall()
        gone: list[str] = []
        for neighbour, pair in zip(neighbours, pairs, strict=True):
            if pair is None or pair[0].expires <= now:
                gone.append(neighbour.id)
            elif pair[0].question.group == question.group and _is_young(pair[0], control, now):
                looked.found.append((*pair, neighbour.similarity))
        if gone:
            self._space.index.remove(question, gone)
        return True

    def consider(self, call: Call, looked: LookupResult, decide: Callable[[Proposal | None], Decision]) -> Decision:
        """The candidate of what was found, if there is one, and what `decide` makes of it where the caller may have it.

        On a public route that is only what a second owner has confirmed.
        """
        candidates = [
            KnownNeighbour(answer.id, similarity, answer.question.text, answer.answer_id, history)
            for answer, history, similarity in looked.found
        ]
        proposal = looked.proposal = looked.learning.decider.propose(looked.question.text, candidates)
        answer = None
        if proposal is not None:
            answer = looked.answer = next(found[0] for found in looked.found if found[0].id == proposal.candidate.id)
        may_have = answer is None or not self._is_public or answer.confirmed_by_other or answer.owner == call.key_id
        decision = looked.decision = decide(proposal if may_have else None)
        looked.reason = decision.reason if may_have else "unconfirmed"
        return decision

    async def _find_near(
        self, question: Question, vector: Vector
    ) -> tuple[Sequence[Neighbour], Sequence[tuple[StoredAnswer, History] | None]]:
        """The nearest entries, and what is stored under each."""
        neighbours = await self._space.index.search(question, vector, NEIGHBOURS)
        if not neighbours:
            return neighbours, ()
        return neighbours, await self._answers.get(question.scope, [neighbour.id for neighbour in neighbours])

    async def _find(self, call: Call, looked: LookupResult, control: Control, tally: SemanticTally) -> None:
        if not await self.search(call, looked, control, tally):
            looked.reason = "store_away"
            return
        if not control.may_read:
            looked.reason = "refresh"
            return
        began = self._clock.now()
        decision = self.consider(call, looked, looked.learning.decide)
        tally.took("decide", self._clock.now() - began)
        if decision.serve and looked.learning.is_in_doubt:
            looked.reason = "unlabelled"
        elif decision.serve and self._policy.mode == "observe":
            looked.reason = "would_hit"
        else:
            looked.serves = decision.serve


def _is_young(answer: StoredAnswer, control: Control, now: float) -> bool:
    return control.max_age_s is None or now - answer.entry.created < control.max_age_s

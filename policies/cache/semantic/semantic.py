"""The semantic cache as a backend: same question in other words, same answer, within a bound on wrong ones.

It stands between the exact cache and the pool. A call is looked up and answered from a stored entry, or asked of the
backend within; what that says teaches the decision. Anything doubtful is a miss, with its reason.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from random import Random

import msgspec

from backends.clock import Clock
from backends.drafts.prediction import Prediction
from backends.errors import Draining
from backends.protocol import (
    Backend,
    CacheOutcome,
    Call,
    Facts,
    Headers,
    Reply,
    SemanticFacts,
)
from backends.recorded_pace import Stopwatch
from backends.stream import Stream
from policies.background import Background
from policies.beside import tell_charges
from policies.cache.control import Control, parse_control
from policies.cache.entry import AnswerForm, Entry
from policies.cache.record import Recorder, entry_of_body, entry_of_events, is_shareable, may_store
from policies.cache.replay.render import PacedReplay, Replayed, content_type_of, render
from policies.cache.semantic.answer_text import text_of
from policies.cache.semantic.answers.quotas import Quotas
from policies.cache.semantic.contracts import AnswerStore, Decision, Proposal, Question
from policies.cache.semantic.learning.comparators import Comparison
from policies.cache.semantic.learning.decisions import LearnedDecisions
from policies.cache.semantic.learning.judge import RouteJudge
from policies.cache.semantic.learning.labels import LabelSource, Learning
from policies.cache.semantic.learning.rewording import Rewording
from policies.cache.semantic.learning.teacher import Teacher
from policies.cache.semantic.lookup import LookupResult, Lookups
from policies.cache.semantic.question import Ineligible, Questions
from policies.cache.semantic.settings import SemanticPolicy
from policies.cache.semantic.tally import SemanticCounts, SemanticTally
from policies.cache.semantic.vector_space import VectorSpace
from policies.cache.settings import CachePolicy
from policies.stage import Stage

_MAX_LEARNING, _MAX_JUDGED = 16, 64
"""Answers that may wait at once to be compared, or to be judged, which takes a call; more are not learned from. In a
longer queue no more of them are compared, only later, and late labels let more wrong answers through."""

_ENDING_LABELS = 2
"""Bad ones that are an entry's end."""

_MAX_REMEMBERED = 4096
"""Served answers of which feedback by the request's id still finds the way."""

_SAVE_EVERY_S = 5.0
_PIECE_CHARS = 80
"""About twenty tokens: how much of a paced answer comes at once."""


class SemanticParts(msgspec.Struct, frozen=True):
    """What a stage works with and does not own."""

    space: VectorSpace
    answers: AnswerStore
    book: LearnedDecisions
    quotas: Quotas
    clock: Clock
    random: Random


class ServedAnswer(msgspec.Struct, frozen=True):
    """An answer given from an entry, as far as feedback on it needs to know, and who asks why."""

    scope: bytes
    proposal: Proposal
    learning: Learning
    decision: Decision


class SemanticCache(Stage):
    """Answers questions near enough to stored ones. `parts` belong to whoever opened them, `inner` to the stage.

    `predict_from`: cosine from which an answer that is not served goes along as predicted text; none does without.
    """

    def __init__(
        self,
        inner: Backend,
        policy: CachePolicy,
        parts: SemanticParts,
        *,
        route: str,
        judge: RouteJudge | None = None,
        predict_from: float | None = None,
    ) -> None:
        assert policy.semantic is not None, "a route without the section has no such stage"
        super().__init__(inner)
        self._policy: SemanticPolicy = policy.semantic
        self._cache_policy = policy
        self._honoured = frozenset(policy.client_control)
        self._parts = parts
        self._clock = parts.clock
        self._route = route
        self._judge = judge
        self._predict_from = predict_from
        self._judge_tokens_taken = 0
        self._questions: Questions | None = None
        is_public = policy.scope == "global"
        self._lookups = Lookups(parts.space, parts.answers, self._policy, parts.clock, is_public=is_public)
        self._comparison = Comparison(parts.space.encoder, judge, Rewording())
        self._teacher: Teacher | None = None
        self._tally = SemanticTally()
        self._learners = Background(_MAX_LEARNING if judge is None else _MAX_JUDGED)
        self._shadows = Background(self._policy.max_shadows)
        self._upkeep = Background(1)
        self._served: OrderedDict[str, ServedAnswer] = OrderedDict()

    @property
    def book(self) -> LearnedDecisions:
        """What it has learned."""
        return self._parts.book

    @property
    def bound(self) -> float | None:
        """How many look-ups may at most be answered wrongly, as a share; None where the policy does not promise it."""
        policy = self._policy
        return policy.max_wrong_hit_rate if policy.mode == "verified" and policy.min_precision is None else None

    @property
    def space(self) -> VectorSpace:
        """Its encoder and index."""
        return self._parts.space

    async def open(self) -> None:
        """Open the backend within. The vector space has to be open already."""
        await super().open()
        self._questions = Questions(
            self._cache_policy,
            self._policy,
            self._route,
            self._parts.space.encoder.fingerprint,
            self.capabilities.headers,
        )
        parts = self._parts
        self._teacher = Teacher(
            parts.space,
            parts.answers,
            self._comparison,
            parts.clock,
            parts.random,
            ttl_s=self._questions.ttl_s,
            is_public=self._cache_policy.scope == "global",
            keeps_uncompared=self._policy.mode == "static",
            note_scope=partial(parts.quotas.note, max_bytes=self._policy.quota, ttl_s=self._policy.ttl),
        )
        self._upkeep.start(self._save_regularly())

    async def aclose(self) -> None:
        """End what runs in the background, save what was learned, close the backend within. Safe to call twice."""
        for background in (self._upkeep, self._shadows, self._learners):
            await background.aclose()
        self._parts.book.save()
        await super().aclose()

    def take_tally(self) -> SemanticCounts:
        """What has happened since the last time."""
        spent = self._judge.spent_tokens if self._judge is not None else 0
        taken = self._tally.take(spent - self._judge_tokens_taken)
        self._judge_tokens_taken = spent
        return taken

    async def settle(self) -> None:
        """Wait until everything in the background has been done."""
        await self._shadows.wait()
        await self._learners.wait()

    async def send(self, call: Call) -> Reply:
        """Answer from a stored entry, or from the backend within; `facts.semantic` says why.

        Raises: what the backend within raises.
        """
        if call.drafts:
            return await self._inner.send(call)
        control = parse_control(call.cache_control, self._honoured)
        question = self.read(call) if control.may_write else Ineligible.NO_STORE
        if isinstance(question, Ineligible):
            reply = await self._inner.send(call)
            self._note(call, reply.headers, CacheOutcome.BYPASS, SemanticFacts(question.value))
            return reply
        looked = await self.look_up(call, question, control)
        served = self._serve(call, looked) if looked.serves else None
        return served if served is not None else await self._ask(call, looked)

    def read(self, call: Call) -> Question | Ineligible:
        """The question of a call, or why it has none.

        Raises: Draining before `open`.
        """
        if self._questions is None:
            raise Draining("the route is not open yet")
        return self._questions.read(call)

    async def look_up(self, call: Call, question: Question, control: Control) -> LookupResult:
        """What is known of the question, and the decision; it counts."""
        looked = await self.begin(call, question)
        await self._lookups.find(call, looked, control, self._tally)
        return looked

    async def begin(self, call: Call, question: Question) -> LookupResult:
        """A look-up that has found nothing yet."""
        assert self._questions is not None, "there is a question"
        learning = await self._parts.book.learning(self._questions.learning_scope(call), call.tenant)
        return LookupResult(question, learning, "no_candidate")

    async def rehearse(self, call: Call, question: Question) -> LookupResult:
        """As `look_up`, for people: nothing is counted and nothing served. Raises: EncoderBusy, TimeoutError."""
        looked = await self.begin(call, question)
        if not await self._lookups.search(call, looked, Control(), SemanticTally()):
            looked.reason = "store_away"
            return looked
        self._lookups.consider(call, looked, looked.learning.rehearse)
        return looked

    def take_served(self, *, request_id: str | None = None, entry: str | None = None) -> ServedAnswer | None:
        """The answer that was given to that request, or the last one from that entry, while it is remembered.

        It is not remembered any longer: one answer is one label, however often people say what they think of it.
        """
        if request_id is None:
            names = (name for name, given in reversed(self._served.items()) if given.proposal.candidate.id == entry)
            request_id = next(names, None)
        return self._served.pop(request_id, None) if request_id is not None else None

    def served(self, request_id: str) -> ServedAnswer | None:
        """The answer that was given to that request, while it is remembered; it still is afterwards."""
        return self._served.get(request_id)

    @property
    def tally(self) -> SemanticTally:
        """Its counters, for who adds to them."""
        return self._tally

    def _serve(self, call: Call, looked: LookupResult) -> Reply | None:
        """The proposal's answer as this call's, or None where it has no faithful form for it or cannot be checked."""
        answer, decision = looked.answer, looked.decision
        assert answer is not None, "it serves an entry"
        assert decision is not None, "because that was decided"
        assert looked.proposal is not None, "on a proposal"
        pace = self._policy.replay_tps
        body = render(answer.entry, call, _PIECE_CHARS if pace is not None else None)
        if body is None:
            looked.reason = "form"
            return None
        if decision.shadow:
            looked.weight = 1.0 / decision.shadow_probability
            looked.served_at = decision.score
            if not self._shadows.start(self._shadow(call, looked)):
                # A check that is due is made: then on the client's path, with the same weight.
                looked.reason = "shadow_busy"
                return None
        self._parts.answers.record(looked.question.scope, answer.id, served=1)
        self._remember(call.request_id, ServedAnswer(looked.question.scope, looked.proposal, looked.learning, decision))
        age_s = max(0.0, self._clock.wall() - answer.entry.created)
        call.facts.cache_age_s = age_s
        call.facts.usage = answer.entry.usage
        call.facts.cache = CacheOutcome.SEMANTIC
        similarity = looked.proposal.candidate.similarity
        headers = [
            (b"content-type", content_type_of(answer.entry, call)),
            (b"age", b"%d" % age_s),
            (b"x-cache-entry", answer.id.encode("ascii")),
            (b"x-cache-score", b"%.4f" % similarity),
            *answer.entry.marks,
        ]
        facts = SemanticFacts(looked.reason, answer.id, round(similarity, 4))
        self._note(call, headers, CacheOutcome.SEMANTIC, facts)
        if not call.stream:
            return Reply(200, headers, body=body)
        return Reply(200, headers, stream=Stream(PacedReplay(body, pace, self._clock) if pace else Replayed(body)))

    async def _ask(self, call: Call, looked: LookupResult) -> Reply:
        """The answer of the backend within, from which the decision learns if it is whole and good."""
        reply = await self._inner.send(self._with_prediction(call, looked))
        headers = reply.headers
        if looked.vector is not None:
            if reply.stream is None:
                self._begin_learning(call, looked, headers, entry_of_body(call, reply, self._clock.wall()))
            elif is_shareable(reply.status, headers, AnswerForm.SSE):
                keep = partial(self._learn_events, call, looked, list(headers))
                reply.stream.taps.append(Recorder(self._policy.max_entry, keep))
        facts = SemanticFacts(looked.reason)
        if looked.reason == "would_hit" and looked.proposal is not None:
            candidate = looked.proposal.candidate
            facts = SemanticFacts(looked.reason, candidate.id, round(candidate.similarity, 4))
        outcome = CacheOutcome.REFRESH if looked.reason == "refresh" else CacheOutcome.MISS
        self._note(call, headers, outcome, facts)
        return reply

    def _note(self, call: Call, headers: Headers, outcome: CacheOutcome, facts: SemanticFacts) -> None:
        """Say in the reply's headers, the facts and the counters what was made of the call."""
        call.facts.semantic = facts
        self._tally.results["hit" if outcome is CacheOutcome.SEMANTIC else facts.reason] += 1
        headers.append((b"x-cache-reason", facts.reason.encode("ascii")))
        if call.facts.cache is None:
            call.facts.cache = outcome
        if call.facts.cache is outcome:
            headers[:] = [field for field in headers if field[0] != b"x-cache"]
            headers.append((b"x-cache", outcome.value.encode("ascii")))

    def _learn_events(self, call: Call, looked: LookupResult, headers: Headers, body: bytes) -> None:
        self._begin_learning(call, looked, headers, entry_of_events(call, headers, body, self._clock.wall()))

    def _begin_learning(self, call: Call, looked: LookupResult, headers: Headers, entry: Entry | None) -> None:
        if entry is None or not may_store(call, headers, entry, self._policy.max_entry):
            return
        assert self._teacher is not None, "there was a question"
        source = LabelSource.SHADOW if looked.served_at is not None else LabelSource.MISS
        if not self._learners.start(self._learn(call, looked, entry, source)):
            self._teacher.pass_over(call, looked, entry)
            self._tally.dropped += 1

    async def _learn(self, call: Call, looked: LookupResult, entry: Entry, source: LabelSource) -> None:
        """Take in what the backend said; an answer that no longer holds goes, with all that say the same."""
        assert self._teacher is not None, "there was a question"
        await self._teacher.learn(call, looked, entry, source, self._tally)
        if looked.answer is not None and looked.learning.decider.gives_up(looked.answer.answer_id):
            for _ in range(_ENDING_LABELS):
                self._parts.answers.record(looked.question.scope, looked.answer.id, bad=1.0)

    async def _shadow(self, call: Call, looked: LookupResult) -> None:
        """Ask the backend within what it would have answered, at nobody's expense but the route's."""
        facts = Facts(extra=call.facts.extra)
        watch = facts.stopwatch = Stopwatch(self._clock) if call.facts.stopwatch is not None else None
        deadline = self._clock.now() + call.timeouts.total_s
        own = msgspec.structs.replace(self._with_prediction(call, looked), facts=facts, deadline=deadline)
        self._tally.shadows += 1
        try:
            reply = await self._inner.send(own)
            if watch is not None and reply.stream is not None:
                watch.note_head()
                reply.stream.taps.append(watch)
            entry = await self._whole(own, reply)
            if entry is not None and may_store(own, reply.headers, entry, self._policy.max_entry):
                await self._learn(own, looked, entry, LabelSource.SHADOW)
        finally:
            tell_charges(facts, facts.extra)
            if facts.usage is not None:
                self._tally.shadow_tokens += facts.usage.prompt_tokens + facts.usage.completion_tokens

    def _with_prediction(self, call: Call, looked: LookupResult) -> Call:
        """The call with the proposal's answer as what a model will probably say, where the route wants that.

        On a public route too it is only an answer that this caller may have: how soon the next one comes would tell.
        """
        least, proposal, answer = self._predict_from, looked.proposal, looked.answer
        if least is None or proposal is None or answer is None or looked.reason == "unconfirmed":
            return call
        text = text_of(answer.entry) if proposal.candidate.similarity >= least else None
        if text is None:
            return call
        self._tally.predictions += 1
        return msgspec.structs.replace(call, predicted=Prediction(text, "cache"))

    async def _whole(self, call: Call, reply: Reply) -> Entry | None:
        """A reply read to its end as an entry, None where it is not fit for one."""
        try:
            if reply.stream is None:
                return entry_of_body(call, reply, self._clock.wall())
            if not is_shareable(reply.status, reply.headers, AnswerForm.SSE):
                return None
            body = await reply.stream.read_all(self._policy.max_entry)
            return None if body is None else entry_of_events(call, reply.headers, body, self._clock.wall())
        finally:
            await reply.aclose()

    def _remember(self, request_id: str, given: ServedAnswer) -> None:
        self._served[request_id] = given
        if len(self._served) > _MAX_REMEMBERED:
            self._served.popitem(last=False)

    async def _save_regularly(self) -> None:
        while True:
            await self._clock.sleep(_SAVE_EVERY_S)
            self._parts.book.save()

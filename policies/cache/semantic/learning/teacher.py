"""What becomes of a backend's answer: a verdict on the proposal, and an entry of its own or one more way to ask."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

import msgspec
import numpy as np

from backends.charges.charge import Charge
from backends.clock import Clock
from backends.protocol import Call
from policies.cache.entry import Entry
from policies.cache.key import digest_of
from policies.cache.semantic.answer_text import text_of
from policies.cache.semantic.contracts import AnswerStore, EncoderBusy, Question, StoredAnswer
from policies.cache.semantic.decision.logistic import evidence_of
from policies.cache.semantic.learning.comparators import AnswerVerdict, Comparison, are_one, verdict_of
from policies.cache.semantic.learning.labels import LabelSource
from policies.cache.semantic.lookup import LookupResult
from policies.cache.semantic.sameness.courtesies import normal_form
from policies.cache.semantic.sameness.parts import MAX_CHARS
from policies.cache.semantic.sameness.words import share_words, worded_most_like
from policies.cache.semantic.tally import SemanticTally
from policies.cache.semantic.vector_space import VectorSpace

SCOPE_CHARS = 43
"""The beginning of an entry's id is its scope, so that an id by itself says where to look."""

_EXAMINED_SHARE = 0.2
"""Of the proposals of a route with a judge that would not have been served: these cost a call too, and without any the
threshold would never come down."""

_MAX_OTHERS = 2
"""Other answers among the neighbours that are compared too, at most: each takes as long as the first. Those that share
hardly a word with the new one are passed over."""

_MOST_AT_ONCE = 4
"""Answers that are learned from at once, with which others among the neighbours are still compared: where more wait, a
label for each is worth more than that, and each is found the sooner.
"""

_TAGS_HEADER = b"x-cache-tags"
_MAX_TAGS = 8
_MAX_TAG_CHARS = 64


def scope_of_id(id: str) -> bytes | None:
    """The scope that an entry's id names, or None where it is no id of ours."""
    try:
        scope = base64.urlsafe_b64decode(id[:SCOPE_CHARS] + "=")
    except ValueError:
        return None
    return scope if len(scope) == 32 and len(id) > SCOPE_CHARS else None


class _Judged(NamedTuple):
    """A proposal's answer, held against the new one. `belief`: log odds that both say the same, by the decision and the
    comparison together; 0 where they could not be compared. `is_same`: whether they are one.
    """

    compared: StoredAnswer
    sameness: float | None
    belief: float
    is_same: bool
    is_examined: bool

    @property
    def is_refuted(self) -> bool:
        return self.sameness is not None and self.sameness < 0.5


class Teacher:
    """Compares, labels and stores, off the client's path. `ttl_s`: how long an answer to a text may be served.

    `keeps_uncompared`: also an answer for which there is no room to hold it against the one proposed. Where a bound is
    promised such answers are not stored: served before anybody has read them, they went wrong half as often again as
    the decision expected.
    """

    def __init__(
        self,
        space: VectorSpace,
        answers: AnswerStore,
        comparison: Comparison,
        clock: Clock,
        random: Random,
        *,
        ttl_s: Callable[[str], float],
        is_public: bool,
        keeps_uncompared: bool,
        note_scope: Callable[[bytes, str], None],
    ) -> None:
        self._space = space
        self._answers = answers
        self._comparison = comparison
        self._clock = clock
        self._random = random
        self._ttl_s = ttl_s
        self._is_public = is_public
        self._keeps_uncompared = keeps_uncompared
        self._note_scope = note_scope
        self._num_learning = 0

    def pass_over(self, call: Call, looked: LookupResult, entry: Entry) -> None:
        """There is no room to compare what the backend answered to a call that was looked up."""
        text = text_of(entry)
        if text is None or looked.vector is None:
            return
        if looked.served_at is not None:
            # A check that was due has not been made, and without checks there is no bound.
            _settle(looked, None, is_label=False)
        if self._keeps_uncompared or looked.answer is None:
            self._store(call, looked, entry, text)
        self._forget_older(call, looked)

    async def learn(
        self, call: Call, looked: LookupResult, entry: Entry, source: LabelSource, tally: SemanticTally
    ) -> None:
        """Take in what the backend answered to a call that was looked up: it is stored, a label, and made one with what
        says the same.
        """
        text = text_of(entry)
        if text is None or looked.vector is None:
            return
        # Before it is compared: whoever asks next finds it, however long that takes.
        answer = self._store(call, looked, entry, text)
        self._num_learning += 1
        try:
            judged = await self._judge_proposal(call, looked, text, tally)
            same = judged.compared if judged is not None and judged.is_same else None
            is_known = False
            if self._num_learning <= _MOST_AT_ONCE or (judged is not None and judged.is_refuted):
                same, is_known = await self._join(call, looked, text, same)
            if judged is not None:
                self._settle(looked, judged, source, tally, is_explained=is_known)
        except EncoderBusy:
            same = None
            if not self._keeps_uncompared:
                self._forget(looked.question, [answer.id])
        finally:
            self._num_learning -= 1
        if same is not None:
            await self._make_one(answer, same)
        self._forget_older(call, looked)

    def _forget_older(self, call: Call, looked: LookupResult) -> None:
        """The same text was asked anew: what it was answered before is out of date, but never another owner's."""
        question = looked.question
        older = [
            found.id
            for found, _, _ in looked.found
            if found.question.text == question.text and (not self._is_public or found.owner == call.key_id)
        ]
        if older:
            self._forget(question, older)

    def _forget(self, question: Question, ids: Sequence[str]) -> None:
        self._answers.delete(question.scope, ids)
        self._space.index.remove(question, ids)

    async def _judge_proposal(
        self, call: Call, looked: LookupResult, text: str, tally: SemanticTally
    ) -> _Judged | None:
        """The proposal's answer held against the new one; None without a proposal. Raises: EncoderBusy."""
        answer, proposal = looked.answer, looked.proposal
        if answer is None or proposal is None:
            return None
        is_examined = self._is_examined(looked)
        compared = answer if self._is_public else _worded_most_like(text, looked, answer)
        try:
            sameness = await self._compare(looked, compared, text, may_ask=is_examined, told=call.facts.extra)
        except EncoderBusy:
            # No label, for that the machine is busy says nothing of the answers; but without checks there is no bound.
            _settle(looked, None, is_label=False)
            tally.dropped += 1
            raise
        if sameness is None:
            return _Judged(compared, None, 0.0, False, is_examined)
        score, evidence = _score(looked), float(evidence_of(np.array([sameness]))[0])
        return _Judged(compared, sameness, score + evidence, are_one(score, evidence), is_examined)

    def _settle(
        self, looked: LookupResult, judged: _Judged, source: LabelSource, tally: SemanticTally, *, is_explained: bool
    ) -> None:
        """The label, and the entry's history, by the decision and the comparison together."""
        is_label = judged.is_examined and not self._comparison.is_resting
        _settle(looked, judged.sameness, is_label=is_label, is_explained=is_explained)
        verdict = verdict_of(judged.sameness)
        tally.labels[source, verdict] += 1
        tally.wrong_hits += looked.served_at is not None and verdict is AnswerVerdict.DIFFERENT
        assert looked.answer is not None, "it was judged"
        record = partial(self._answers.record, looked.question.scope, looked.answer.id)
        if judged.is_same:
            record(good=1.0)
        elif _matters(looked) and judged.belief < 0.0:
            # What would not have been served is not the entry's fault: two of these are its end.
            record(bad=1.0)

    def _is_examined(self, looked: LookupResult) -> bool:
        """Whether the verdict becomes a label, decided before it is known.

        Cheap looks mostly find "same", a judge is mostly needed for "different": labels of the cheap ones alone, where
        there is a judge that is not asked, would be too good.
        """
        if not self._comparison.has_judge:
            return True
        if self._comparison.is_resting:
            return False
        return _matters(looked) or looked.reason == "learning" or self._random.random() < _EXAMINED_SHARE

    async def _join(
        self, call: Call, looked: LookupResult, text: str, same: StoredAnswer | None
    ) -> tuple[StoredAnswer | None, bool]:
        """What the answer is one with: `same`, or the nearest other that says the same; and whether another may do so.

        Neighbours that say the same too are one with that from here on, and with them all that are one with them, for
        each wording begins by itself and votes against the others; on a route for everybody nobody's answer is moved by
        another's.
        """
        judged = looked.answer.answer_id if looked.answer is not None else None
        nearest: dict[str, StoredAnswer] = {}
        for found, _, _ in looked.found:
            if found.answer_id != judged:
                nearest.setdefault(found.answer_id, found)
        num_left = _MAX_OTHERS
        is_known = False
        for other in nearest.values():
            if not num_left or (same is not None and self._is_public):
                break
            compared = other if self._is_public else _worded_most_like(text, looked, other)
            if not share_words(text_of(compared.entry) or "", text):
                continue
            num_left -= 1
            try:
                sameness = await self._compare(looked, compared, text, may_ask=False, told=call.facts.extra)
            except EncoderBusy:
                # Then no more pairs come to it.
                break
            is_known = is_known or (sameness is not None and sameness > 0.5)
            if verdict_of(sameness) is AnswerVerdict.SAME:
                if same is None:
                    same = compared
                else:
                    await self._make_one(compared, same)
        return same, is_known

    async def _as_they_are_now(self, answers: Sequence[StoredAnswer]) -> list[StoredAnswer | None]:
        """Answers of one scope that were found before: since then they may have been united with others, or forgotten,
        and what was forgotten stays so.
        """
        known = await self._answers.get(answers[0].question.scope, [answer.id for answer in answers])
        return [pair[0] if pair is not None else None for pair in known] or [None] * len(answers)

    async def _compare(
        self,
        looked: LookupResult,
        answer: StoredAnswer,
        text: str,
        *,
        may_ask: bool,
        told: Callable[[Charge], None] | None,
    ) -> float | None:
        """As `Comparison.compare`. Raises: EncoderBusy."""
        stored = text_of(answer.entry)
        if stored is None:
            return None
        return await self._comparison.compare(looked.question.text, stored, text, may_ask=may_ask, told=told)

    def _store(self, call: Call, looked: LookupResult, entry: Entry, text: str) -> StoredAnswer:
        """As an answer by itself."""
        question = looked.question
        assert looked.vector is not None, "asked before"
        self._note_scope(question.scope, call.tenant)
        answer = StoredAnswer(
            id=self._new_id(question.scope),
            question=question,
            answer_id=_answer_id(question.group, text),
            entry=entry,
            model=call.model,
            owner=call.key_id,
            expires=self._clock.wall() + self._ttl_s(question.text),
            tags=_tags(call),
        )
        self._answers.put(answer)
        self._space.index.add(question, answer.id, looked.vector)
        return answer

    async def _make_one(self, answer: StoredAnswer, same: StoredAnswer) -> None:
        """All that says what the answer does with all that says the same. On a route for everybody that is the answer
        alone, and two owners' confirm each other.
        """
        own, other = await self._as_they_are_now([answer, same])
        if own is None or other is None:
            return
        if not self._is_public:
            self._answers.unite(own.question.scope, own.answer_id, other.answer_id)
            return
        is_confirmed = other.confirmed_by_other or other.owner != own.owner
        for each in (own, other):
            self._answers.put(msgspec.structs.replace(each, answer_id=other.answer_id, confirmed_by_other=is_confirmed))

    def _new_id(self, scope: bytes) -> str:
        own = self._random.getrandbits(72).to_bytes(9, "big")
        return (base64.urlsafe_b64encode(scope)[:SCOPE_CHARS] + base64.urlsafe_b64encode(own)).decode("ascii")


def _settle(looked: LookupResult, sameness: float | None, *, is_label: bool, is_explained: bool = False) -> None:
    assert looked.proposal is not None, "it was compared"
    looked.learning.settle(
        looked.proposal,
        sameness,
        is_label=is_label,
        matters=_matters(looked),
        weight=looked.weight,
        served_at=looked.served_at,
        is_explained=is_explained,
    )


def _matters(looked: LookupResult) -> bool:
    return looked.matters or looked.served_at is not None


def _score(looked: LookupResult) -> float:
    """The log odds of the proposal being right by the decision, even where nobody was allowed to have it."""
    score = looked.decision.score if looked.decision is not None else 0.0
    return score if math.isfinite(score) else 0.0


def _worded_most_like(text: str, looked: LookupResult, answer: StoredAnswer) -> StoredAnswer:
    """Of what was found to say the same as an answer, that whose words are nearest to the text: it is compared most
    surely, and stands for the others.
    """
    alike = [found for found, _, _ in looked.found if found.answer_id == answer.answer_id]
    return alike[worded_most_like(text, [text_of(found.entry) or "" for found in alike])]


def _answer_id(group: bytes, text: str) -> str:
    """Equal for equal texts of a group, so that these vote together wherever they were stored."""
    plain = normal_form(text) if len(text) <= MAX_CHARS else text
    return digest_of(("slipstream answer", group, plain))[:12].hex()


def _tags(call: Call) -> tuple[str, ...]:
    """The route, the tenant, and what the client's `x-cache-tags` lists."""
    named = [
        tag.strip()
        for name, value in call.headers
        if name == _TAGS_HEADER
        for tag in value.decode("latin-1").split(",")
    ]
    fit = [tag for tag in named if 0 < len(tag) <= _MAX_TAG_CHARS and tag.isprintable()]
    return (f"route:{call.route}", f"tenant:{call.tenant}", *fit[:_MAX_TAGS])

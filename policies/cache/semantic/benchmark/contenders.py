"""The caches that are measured: ours, and those that it is compared with. Each sees texts, cosines and answers only."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Generator, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.benchmark.streams import QuestionStream
from policies.cache.semantic.benchmark.upstream import Upstream
from policies.cache.semantic.contracts import Decider, Decision, History, KnownNeighbour, Proposal
from policies.cache.semantic.decision.logistic import evidence_of
from policies.cache.semantic.decision.vote import NEIGHBOURS
from policies.cache.semantic.learning.comparators import SAME_FROM, are_one

_MAX_OTHERS = 2
"""Other answers that are compared too; what says the same as the new one is one with it."""
_MOST_AT_ONCE, _MAX_LEARNING = 4, 16
"""As a gateway has them: answers up to which others are compared too, and up to which any more may wait."""


class CacheContender(Protocol):
    """A cache in front of the upstream, over one stream."""

    def ask(self, query: int) -> int | None:
        """The answer that is served from the cache, or None: the upstream was asked."""

    def hold_only(self, query: int) -> None:
        """Begin a pair: forget all entries but nothing learned, and hold this question with its answer."""


class Entries:
    """The stored questions."""

    def __init__(self, stream: QuestionStream) -> None:
        self._stream = stream
        self._ids = np.empty(len(stream.texts), np.int64)
        self._num = 0

    def add(self, query: int) -> None:
        """Found from now on. A text that is there already stays there once."""
        if query not in self._ids[: self._num]:
            self._ids[self._num] = query
            self._num += 1

    def remove(self, queries: set[int]) -> None:
        """Not found any more."""
        kept = [entry for entry in self._ids[: self._num].tolist() if entry not in queries]
        self._num = len(kept)
        self._ids[: self._num] = kept

    def clear(self) -> None:
        """Forget all."""
        self._num = 0

    def nearest(self, query: int, count: int) -> list[tuple[int, float]]:
        """Up to `count` entries and their cosines, nearest first."""
        ids = self._ids[: self._num]
        near: NDArray[np.float32] = self._stream.similarities(query, ids)
        top = np.argpartition(-near, count - 1)[:count] if len(near) > count else np.arange(len(near))
        top = top[np.argsort(-near[top], kind="stable")]
        return [(int(ids[place]), float(near[place])) for place in top]


class Exact:
    """Serves the same text only."""

    def __init__(self, stream: QuestionStream, upstream: Upstream) -> None:
        self._upstream = upstream
        self._known: set[int] = set()

    def ask(self, query: int) -> int | None:
        """By the text."""
        if query in self._known:
            return query
        self._known.add(self._upstream.answer(query))
        return None

    def hold_only(self, query: int) -> None:
        """Two texts of a pair differ."""


class Cosine:
    """One threshold for the nearest stored question, as most gateways have it."""

    def __init__(self, stream: QuestionStream, upstream: Upstream, threshold: float) -> None:
        self._upstream = upstream
        self._entries = Entries(stream)
        self._threshold = threshold

    def ask(self, query: int) -> int | None:
        """By the nearest."""
        nearest = self._entries.nearest(query, 1)
        if nearest and nearest[0][1] >= self._threshold:
            return nearest[0][0]
        self._entries.add(self._upstream.answer(query))
        return None

    def hold_only(self, query: int) -> None:
        """That question alone."""
        self._entries.clear()
        self._entries.add(query)


class Pooled:
    """Our cache with a decider: exact look-ups with aliases, votes over answers, labels from misses and from checks.

    `pace`: comparisons that its one worker makes while a question is asked and answered; at 1 or so answers wait for
    it, as in a gateway that is asked without a pause, and of those that find no room nothing is kept.
    """

    def __init__(self, stream: QuestionStream, upstream: Upstream, decider: Decider, *, pace: float = math.inf) -> None:
        self._stream = stream
        self._upstream = upstream
        self._entries = Entries(stream)
        self._decider = decider
        self._exact: set[int] = set()
        self._answer_ids: dict[int, str] = {}
        self._histories: dict[int, History] = {}
        self._pace = pace
        self._time_left = 0.0
        self._lessons: deque[Iterator[None]] = deque()
        self.cpu_s = 0.0
        """Spent in proposing and deciding."""
        self.num_decided = 0

    def ask(self, query: int) -> int | None:
        """By the text, then by the decision; an answer that is checked is served all the same."""
        if query in self._exact:
            return query
        text = self._stream.texts[query]
        nearest = self._entries.nearest(query, NEIGHBOURS)
        began = time.thread_time()
        candidates = [
            KnownNeighbour(
                str(entry), cosine, self._stream.texts[entry], self._answer_ids[entry], self._histories[entry]
            )
            for entry, cosine in nearest
        ]
        proposal = self._decider.propose(text, candidates)
        decision = self._decider.decide(proposal)
        self.cpu_s += time.thread_time() - began
        self.num_decided += 1
        served = int(proposal.candidate.id) if proposal is not None and decision.serve else None
        if served is None or decision.shadow:
            answer = self._upstream.answer(query)
            near = [entry for entry, _ in nearest]
            if served is not None or proposal is None or len(self._lessons) < _MAX_LEARNING:
                self._go_on(self._lesson(answer, proposal, decision, near))
        self._work()
        return served

    def hold_only(self, query: int) -> None:
        """That question alone."""
        self._entries.clear()
        self._exact.clear()
        self._store(query)

    def _work(self) -> None:
        """The comparisons for which a question leaves time; none is saved up."""
        self._time_left += self._pace
        while self._lessons and self._time_left >= 1.0:
            self._time_left -= 1.0
            self._go_on(self._lessons.popleft())
        if not self._lessons:
            self._time_left = 0.0

    def _go_on(self, lesson: Iterator[None]) -> None:
        """Up to its next comparison, which waits behind those of others."""
        for _ in lesson:
            self._lessons.append(lesson)
            return

    def _lesson(
        self, answer: int, proposal: Proposal | None, decision: Decision, nearest: list[int]
    ) -> Generator[None, None, None]:
        """What becomes of the backend's answer; stops before each comparison."""
        self._store(answer)
        if proposal is None:
            yield from self._join(answer, nearest, None)
            return
        candidate = int(proposal.candidate.id)
        judged = self._answer_ids[candidate]
        alike = [entry for entry in nearest if self._answer_ids[entry] == judged]
        yield
        rightness = self._upstream.compare(self._upstream.worded_most_like(answer, alike), answer)
        evidence = float(evidence_of(np.array([rightness]))[0])
        is_same = are_one(decision.score, evidence)
        is_known = False
        if len(self._lessons) < _MOST_AT_ONCE or rightness < 0.5:
            others = [entry for entry in nearest if self._answer_ids[entry] != judged]
            is_known = yield from self._join(answer, others, candidate if is_same else None)
        elif is_same:
            self._make_one(answer, candidate)
        self._decider.label(
            proposal,
            rightness=rightness,
            weight=1.0 / decision.shadow_probability,
            served_at=decision.score if decision.serve else None,
            is_explained=is_known,
        )
        if self._decider.gives_up(judged):
            self._end(judged)
        if is_same or decision.score + evidence < 0.0:
            self._record(candidate, is_same, matters=decision.serve or decision.score >= decision.threshold)

    def _join(self, answer: int, others: list[int], same: int | None) -> Generator[None, None, bool]:
        """Makes the answer one with `same` and others that say the same; whether any of the others probably does."""
        num_left = _MAX_OTHERS
        is_known = False
        for other in dict.fromkeys(self._answer_ids[entry] for entry in others):
            if not num_left:
                break
            alike = [entry for entry in others if self._answer_ids[entry] == other]
            if not alike:
                continue
            compared = self._upstream.worded_most_like(answer, alike)
            if not self._upstream.share_words(compared, answer):
                continue
            num_left -= 1
            yield
            sameness = self._upstream.compare(compared, answer)
            is_known = is_known or sameness > 0.5
            if sameness >= SAME_FROM:
                if same is None:
                    same = compared
                else:
                    self._make_one(compared, same)
        if same is not None:
            self._make_one(answer, same)
        return is_known

    def _make_one(self, one: int, other: int) -> None:
        """All that says what either does is one answer from now on: that of more entries."""
        answers = self._answer_ids[one], self._answer_ids[other]
        entries = {answer: [entry for entry, own in self._answer_ids.items() if own == answer] for answer in answers}
        fewer, *more = sorted(entries, key=lambda answer: len(entries[answer]))
        if more:
            self._answer_ids |= dict.fromkeys(entries[fewer], more[0])

    def _record(self, entry: int, is_right: bool, *, matters: bool) -> None:
        history = self._histories[entry]
        if is_right:
            self._histories[entry] = History(history.good + 1, history.bad, history.served)
        elif matters:
            # What would not have been served is not the entry's fault; two of those that would are its end.
            self._histories[entry] = History(history.good, history.bad + 1, history.served)
            if history.bad >= 1:
                self._end(self._answer_ids[entry])

    def _end(self, answer_id: str) -> None:
        gone = {entry for entry, answer in self._answer_ids.items() if answer == answer_id}
        self._entries.remove(gone)
        self._exact -= gone

    def _store(self, query: int) -> None:
        """As an answer by itself."""
        self._answer_ids[query] = str(query)
        self._histories[query] = History()
        self._exact.add(query)
        self._entries.add(query)

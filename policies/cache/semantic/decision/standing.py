"""Which stored answers no longer hold: evidence against each, from labels in the order in which they come.

A stored answer may have been right for long, and be wrong from one question on, because the backend's has changed or
because something else is asked now. For each answer a cumulative sum (Page, 1954) weighs labels: how likely they are if
it no longer holds, against how likely the decision's model has them. One label against an answer that was thought right
makes it suspect: it is not served until one for it has come. Two in a row end it. No clock is asked.

Backends change many answers at once: a new model, new documents. Where much speaks against one that many labels were
for, or a little against several of these (`surprise`), all others are asked for again before they are served, each
once. What is explained does not begin that: a question that is another neighbour's was proposed the wrong answer, and
that may hold as well as before.
"""

from __future__ import annotations

import math

import msgspec

from policies.cache.semantic.decision.logistic import DIFFERENT
from policies.cache.semantic.decision.surprise import SurpriseState

SUSPECT = 1.4
"""From so much evidence on, in log odds, an answer is not served."""
_GONE = 5.0
"""More counts no further, so that two labels for it bring an answer back that holds again."""
_MAX_SCORE = 3.5
"""However likely an answer was thought right, one label for it outweighs one against it so far that it is served."""
_RIGHT_AFTER = 0.1
"""How often an answer that no longer holds is found right all the same: it may do so for part of its questions."""
_MAX_ANSWERS = 1000
_NEWS = 4.0
"""So much against an answer that `_TRUSTED` labels were for says that the backend has changed."""
_TRUSTED = 8
_UNREST_LABELS = 500
"""So long after such news all others are asked for again. Where a tenth of the answers change, 1.7 % were wrong then in
the worst window of 500 look-ups, in the mean of six seeds, and 3.6 % without."""
_SAME_NEWS_LABELS = 100
"""What comes so soon after news is the same news, and nothing that was confirmed since is asked for anew."""


class StandingState(msgspec.Struct):
    """What is kept over a restart: evidence against each answer, where there is any, and how many labels were for each;
    of more than 1,000 answers the longest untouched are forgotten. For `unrest` labels more only what was
    `confirmed_since` is served. `surprise`: what labels on answers that many were for say of all together.
    """

    against: dict[str, float] = {}
    confirmed: dict[str, int] = {}
    unrest: int = 0
    confirmed_since: set[str] = set()
    surprise: SurpriseState = msgspec.field(default_factory=SurpriseState)


class Standing:
    """That of each answer. `state` is changed in place."""

    def __init__(self, state: StandingState | None = None) -> None:
        self._state = state if state is not None else StandingState()

    def is_suspect(self, answer_id: str) -> bool:
        """Whether it is to be asked of the backend, and not served."""
        state = self._state
        is_unconfirmed = state.unrest > 0 and answer_id not in state.confirmed_since
        return is_unconfirmed or state.against.get(answer_id, 0.0) >= SUSPECT

    def is_gone(self, answer_id: str) -> bool:
        """Whether its entries are to be deleted."""
        return self._state.against.get(answer_id, 0.0) >= _GONE

    def note(self, answer_id: str, score: float, evidence: float, *, is_explained: bool = False) -> None:
        """A label on an answer: the log odds of its being right by the model, and those of the comparison.

        `is_explained`: where it is against the answer, the right one is known from another neighbour. That says nothing
        but of an answer in doubt: what has taken its place is known from the second question on.
        """
        state = self._state
        is_trusted = state.confirmed.get(answer_id, 0) >= _TRUSTED
        is_surprise = evidence <= DIFFERENT and not is_explained
        if is_trusted and score > 0.0 and state.surprise.note(is_surprise=is_surprise):
            self._ask_for_others_again()
        if is_explained and evidence < 0.0 and answer_id not in state.against:
            return
        right = 1.0 / (1.0 + math.exp(-max(-30.0, min(_MAX_SCORE, score))))
        said = 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, evidence))))
        if_gone = _RIGHT_AFTER * said + (1.0 - _RIGHT_AFTER) * (1.0 - said)
        expected = right * said + (1.0 - right) * (1.0 - said)
        state.unrest = max(0, state.unrest - 1)
        before = state.against.pop(answer_id, 0.0)
        against = before + math.log(if_gone / expected)
        if against > 0.0:
            state.against[answer_id] = min(against, _GONE)
        if evidence > 0.0:
            state.confirmed[answer_id] = state.confirmed.pop(answer_id, 0) + 1
            if state.unrest:
                state.confirmed_since.add(answer_id)
        if before < _NEWS <= against:
            state.confirmed_since.discard(answer_id)
            state.confirmed.pop(answer_id, None)
            if is_trusted:
                self._ask_for_others_again()
        for known in (state.against, state.confirmed):
            if len(known) > _MAX_ANSWERS:
                del known[next(iter(known))]

    def _ask_for_others_again(self) -> None:
        if self._state.unrest <= _UNREST_LABELS - _SAME_NEWS_LABELS:
            self._state.confirmed_since.clear()
            self._state.unrest = _UNREST_LABELS

"""The verified decision: serves what its labels say is right, within a bound on wrong answers that it keeps.

One small model for a scope tells likely right candidates from others. Nothing is served before enough labels are in;
where labels contradict the model, all is forgotten and it learns anew, serving nothing meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Literal

import msgspec
import numpy as np

from policies.cache.sealed import seal, unseal
from policies.cache.semantic.contracts import Decision, KnownNeighbour, PolicyState, Proposal
from policies.cache.semantic.decision.bound import (
    Bound,
    Labelled,
    ServedHistory,
    above_all,
    lowest_score,
    spending,
)
from policies.cache.semantic.decision.features import FEATURES, Difference
from policies.cache.semantic.decision.logistic import Floats, calibrated, evidence_of, fit
from policies.cache.semantic.decision.proposal import propose
from policies.cache.semantic.decision.rolling_rows import RollingRows
from policies.cache.semantic.decision.standing import Standing, StandingState

MIN_LABELS = 100
"""Below so many labels nothing is served. One that cannot tell is none."""

_WINDOW = 3000
"""Labels, and look-ups with a candidate, that count."""
_REFIT_LABELS = 10
_RECENT_LABELS = 150
"""Labels that by themselves must bear the threshold out too: traffic that has just changed shows in them first."""

_TARGET = 0.80
"""The share of the bound that is aimed at. What chance may add must fit in the rest: of some 40 wrong answers in 5,000
look-ups checks find about eight, so what is estimated and what comes of it lie a third apart."""
_MAX_HASTE = 1.2
"""How far above the target serving may go while little of the budget is spent."""
_MIN_HASTE = 0.6
"""What is still allowed where just the budget seems to be spent: the estimate is no better than that."""
_BRAKE = 0.5
"""Where so much of the budget of the look-ups ahead seems to be spent, a third of that is still allowed."""
_STANDSTILL = 0.1
"""Of the target: where less is allowed nothing is served, for what is left of a threshold's precision."""
_HEAD_START = 200
"""Look-ups whose budget may be spent before they come."""
_AHEAD = 1000
"""Look-ups over which what is left of the budget is spread."""
_MAX_LOOSENING = 0.25
"""In log odds, with one refit; tightening is not limited."""

_SHADOW_SCALE, _MIN_SHADOW, _MAX_SHADOW = 0.12, 0.05, 0.5
_ALERT_HITS = 20
"""Hits that are checked as often as the riskiest after one was found wrong."""

_DOUBT_LABELS = 40
_DOUBT_PROBABILITY = 1e-4
_DOUBT_MIN_WRONG = 0.004
"""The model is given up where it gave what the last 40 checks of served answers found a chance under 1 in 10,000."""

#         bias cosine near share margin good bad guard overlap swapped reordered renamed length unopposed
_PRIOR = np.array([0.0, 4.0, 0.0, 1.0, 1.0, 0.0, 0.0, -3.0, 3.0, -2.0, -2.0, 0.0, 0.0, 0.0])
"""What is believed of the features before the first label: the direction of each, worth about one label of strength."""
_RIDGE = np.array([1e-3, *[1.0] * len(FEATURES)])
_GUARD, _RENAMED = 1 + FEATURES.index("guard"), 1 + FEATURES.index("renamed")

_NOT_SERVED = -1e6
"""In the place of the score that an answer was served at."""

_VERSION = 2
_MAGIC = b"slipstream verified\x00"


class _Learned(msgspec.Struct):
    """All that a decision knows but for its rows, which are `labels` and `seen` in a dump and nowhere else."""

    version: int = _VERSION
    features: tuple[str, ...] = FEATURES
    labels: bytes = b""
    seen: bytes = b""
    fitted: list[float] = msgspec.field(default_factory=_PRIOR.tolist)
    weights: list[float] | None = None
    threshold: float = math.inf
    num_labels: int = 0
    informed: float = 0.0
    """The labels in the window, each with what it tells: (2 x rightness - 1) squared."""
    num_lookups: int = 0
    num_served: int = 0
    num_doubts: int = 0
    alert: int = 0
    """So many hits more are checked as often as the riskiest."""
    recent: list[tuple[float, float]] = []
    """The latest checks of served answers: the chance of a wrong one that the model gave, and once it was compared."""
    standing: StandingState = msgspec.field(default_factory=StandingState)
    spent: float = 0.0
    spent_upper: float = 0.0
    is_spent_up: bool = False


class Verified:
    """A `Decider` that keeps a bound. `random` decides which served answers are checked.

    `observe` decides without serving and calls a hit `would_hit`. `guard`: what a difference in numbers, negation or
    opposites is: a feature, or a veto.
    """

    def __init__(
        self,
        bound: Bound,
        random: Random,
        *,
        mode: Literal["verified", "observe"] = "verified",
        guard: Literal["feature", "veto"] = "feature",
    ) -> None:
        self._bound = bound
        self._random = random
        self._mode = mode
        self._guard_is_veto = guard == "veto"
        self._labels = RollingRows(_WINDOW, len(FEATURES) + 2)
        self._seen = RollingRows(_WINDOW, len(FEATURES) + 1)
        self._learned = _Learned()
        self._standing = Standing(self._learned.standing)

    def propose(self, text: str, candidates: Sequence[KnownNeighbour]) -> Proposal | None:
        """The best candidate by vote of answers; None where nothing is near enough."""
        return propose(text, candidates, self._against)

    def decide(self, proposal: Proposal | None) -> Decision:
        """Once for every look-up: counts it. One without a candidate makes no room for wrong answers elsewhere."""
        self._learned.num_lookups += 1
        if proposal is None:
            return Decision(False, False, 1.0, -math.inf, self._learned.threshold, "no_candidate")
        score = self._score(proposal)
        reason = self._reason(proposal, score)
        serve = reason in ("served", "would_hit")
        self._seen.append((*proposal.features, score if serve else _NOT_SERVED))
        self._learned.num_served += serve
        if reason != "served":
            return Decision(False, False, 1.0, score, self._learned.threshold, reason)
        probability = self._shadow_probability(score)
        return Decision(True, self._random.random() < probability, probability, score, self._learned.threshold, reason)

    def label(
        self, proposal: Proposal, *, rightness: float, weight: float, served_at: float | None, is_explained: bool
    ) -> None:
        """What a comparison says of the proposal. `weight`: 1 after a miss, 1 / probability after a shadow check.

        Every label counts once, whatever its weight: which answers are checked depends on the score alone, and so does
        what the model expects of them; feedback is one answer as well. Of a served answer is expected what was when it
        was served, however late its label comes: a model that has learned meanwhile would expect no surprise. Each
        10th label, and each that finds a served answer wrong, fits the model anew: at most 3 ms with a full window,
        little enough to stay on the event loop.
        """
        score = self._score(proposal) if served_at is None else served_at
        self._labels.append((*proposal.features, rightness, _NOT_SERVED if served_at is None else served_at))
        self._learned.num_labels += 1
        is_wrong = False
        evidence = float(evidence_of(np.array([rightness]))[0])
        self._standing.note(proposal.candidate.answer_id, score, evidence, is_explained=is_explained)
        if served_at is not None:
            doubt = _wrong(score + evidence)
            is_wrong = doubt > 0.5
            self._learned.recent.append((max(_wrong(score), _DOUBT_MIN_WRONG), doubt))
            del self._learned.recent[:-_DOUBT_LABELS]
            self._learned.alert = _ALERT_HITS if is_wrong else self._learned.alert
            if is_wrong and self._is_in_doubt():
                self._learned.num_doubts += 1
                self._forget()
                return
        if self._learned.num_labels % _REFIT_LABELS == 0 or is_wrong:
            self._refit()

    def gives_up(self, answer_id: str) -> bool:
        """Whether labels say that an answer no longer holds."""
        return self._standing.is_gone(answer_id)

    def state(self) -> PolicyState:
        """What has been learned. `mode` is observe while nothing is served for want of trust or of budget."""
        stands_back = self._learned.is_spent_up or (
            self._learned.num_doubts > 0 and self._learned.informed < MIN_LABELS
        )
        per_lookup = 1.0 / max(1, len(self._seen))
        return PolicyState(
            mode="observe" if stands_back else self._mode,
            labels=self._learned.num_labels,
            lookups=self._learned.num_lookups,
            served=self._learned.num_served,
            threshold=self._learned.threshold,
            spent=self._learned.spent,
            wrong_hit_rate=self._learned.spent * per_lookup,
            wrong_hit_rate_upper=self._learned.spent_upper * per_lookup,
        )

    def dump(self) -> bytes:
        """Everything, to go on with after a restart or in another replica."""
        learned = msgspec.structs.replace(self._learned, labels=self._labels.dump(), seen=self._seen.dump())
        packed = msgspec.msgpack.encode(learned)
        return seal(_MAGIC, b"", packed)

    def load(self, dumped: bytes) -> None:
        """Take over what was dumped. Raises: ValueError where it is of another version or damaged."""
        learned = _unpacked(dumped)
        labels, seen = RollingRows(_WINDOW, len(FEATURES) + 2), RollingRows(_WINDOW, len(FEATURES) + 1)
        labels.load(learned.labels)
        seen.load(learned.seen)
        self._labels, self._seen = labels, seen
        learned.labels = learned.seen = b""
        self._learned = learned
        self._standing = Standing(learned.standing)

    def _forget(self) -> None:
        """Know nothing, and so serve nothing."""
        self._labels.clear()
        self._seen.clear()
        before = self._learned
        self._learned = _Learned(
            num_lookups=before.num_lookups,
            num_served=before.num_served,
            num_doubts=before.num_doubts,
            standing=before.standing,
        )

    def _against(self, words: Difference) -> float:
        """What has been learned of words that differ so; nothing speaks for an answer because its words do."""
        weights = self._learned.weights if self._learned.weights is not None else _PRIOR
        guarded, renamed = min(0.0, float(weights[_GUARD])), min(0.0, float(weights[_RENAMED]))
        return -(guarded * words.guarded + renamed * words.renamed)

    def _score(self, proposal: Proposal) -> float:
        weights = self._learned.weights if self._learned.weights is not None else _PRIOR.tolist()
        return float(weights[0] + sum(map(float.__mul__, weights[1:], proposal.features)))

    def _reason(self, proposal: Proposal, score: float) -> str:
        if self._learned.informed < MIN_LABELS or self._learned.weights is None:
            return "learning"
        if proposal.guarded and self._guard_is_veto:
            return "guarded"
        if score < self._learned.threshold:
            return "budget" if self._learned.is_spent_up else "below_threshold"
        if self._standing.is_suspect(proposal.candidate.answer_id):
            return "suspect"
        return "served" if self._mode == "verified" else "would_hit"

    def _shadow_probability(self, score: float) -> float:
        if self._learned.alert:
            self._learned.alert -= 1
            return _MAX_SHADOW
        # Sampling as the square root of the risk finds the number of wrong ones with the fewest checks.
        wanted = _SHADOW_SCALE * math.sqrt(_wrong(score) / self._bound.share)
        return min(_MAX_SHADOW, max(_MIN_SHADOW, wanted))

    def _is_in_doubt(self) -> bool:
        expected = sum(probability for probability, _ in self._learned.recent)
        num_wrong = math.floor(sum(doubt for _, doubt in self._learned.recent))
        fewer = sum(expected**count / math.factorial(count) for count in range(num_wrong))
        return 1.0 - math.exp(-expected) * fewer < _DOUBT_PROBABILITY

    def _refit(self) -> None:
        rows = self._labels.rows.astype(np.float64)
        rightness, served_at = rows[:, -2], rows[:, -1]
        self._learned.informed = float(((2.0 * rightness - 1.0) ** 2).sum())
        if self._learned.informed < MIN_LABELS:
            return
        evidence = evidence_of(rightness)
        inputs = np.column_stack([np.ones(len(rows)), rows[:, :-2]])
        fitted = fit(
            inputs,
            evidence,
            prior=_PRIOR,
            ridge=_RIDGE,
            start=np.array(self._learned.fitted),
            steps=8 if self._learned.weights is None else 3,
        )
        weights = calibrated(fitted, inputs, evidence)
        self._learned.fitted, self._learned.weights = fitted.tolist(), weights.tolist()

        seen = self._seen.rows.astype(np.float64)
        if not len(seen):
            # Labels of other replicas alone: what is asked here is not known yet.
            return
        was_checked, was_served = served_at > _NOT_SERVED, seen[:, -1] > _NOT_SERVED
        spent = spending(ServedHistory(seen[was_served, -1], served_at[was_checked], evidence[was_checked]))
        self._learned.spent, self._learned.spent_upper = spent.mean, spent.upper
        num_counted = int(was_served.sum()) if self._bound.min_precision is not None else len(seen)
        self._set_threshold(
            Labelled(inputs @ weights, evidence), seen[:, :-1] @ weights[1:] + weights[0], self._allowed(num_counted)
        )

    def _allowed(self, num_counted: int) -> float:
        """What share may go wrong from here on: the target, hurried where little is spent, braked where too much is."""
        target = _TARGET * self._bound.share
        left = (target * (num_counted + _HEAD_START) - self._learned.spent) / (_AHEAD * target)
        allowed = max(left, _MIN_HASTE * math.exp(min(0.0, left) / _BRAKE))
        self._learned.is_spent_up = allowed < _STANDSTILL
        return 0.0 if self._learned.is_spent_up else min(_MAX_HASTE, allowed) * target

    def _set_threshold(self, labelled: Labelled, seen: Floats, allowed: float) -> None:
        if math.isinf(self._learned.threshold):
            self._learned.threshold = above_all(labelled)
        of_served = self._bound.min_precision is not None
        recent = Labelled(labelled.scores[-_RECENT_LABELS:], labelled.evidence[-_RECENT_LABELS:])
        safe = max(
            lowest_score(labelled, seen, allowed=allowed, of_served=of_served),
            lowest_score(recent, seen, allowed=allowed, of_served=of_served, deviations=0.0),
        )
        self._learned.threshold = max(safe, self._learned.threshold - _MAX_LOOSENING)


def _wrong(score: float) -> float:
    return 1.0 / (1.0 + math.exp(min(30.0, max(-30.0, score))))


def _unpacked(dumped: bytes) -> _Learned:
    """Raises: ValueError, also where a field is no finite number."""
    packed = unseal(_MAGIC, b"", dumped)
    if packed is None:
        raise ValueError("this is no dump of a verified decision, or it is damaged")
    try:
        learned = msgspec.msgpack.decode(packed, type=_Learned)
    except msgspec.DecodeError as error:
        raise ValueError(f"the dump of a verified decision is of another version: {error}") from error
    if learned.version != _VERSION or learned.features != FEATURES:
        raise ValueError(f"the dump is of version {learned.version}, this is version {_VERSION}")
    if any(len(weights) != len(_PRIOR) for weights in (learned.fitted, learned.weights or learned.fitted)):
        raise ValueError(f"the dump has not {len(_PRIOR)} weights")
    return learned

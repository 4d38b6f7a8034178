"""The verified decision: serves what its labels say is right, within a bound on wrong answers that it keeps.

One small model for a scope tells likely right candidates from others. Nothing is served before enough labels are in;
where labels contradict the model, all is forgotten and it learns anew, serving nothing meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Literal

import msgspec
import numpy as np

from policies.cache.sealed import seal, unseal
from policies.cache.semantic.contracts import Candidate, Decision, PolicyState, Proposal
from policies.cache.semantic.decision.bound import (
    Bound,
    Labelled,
    LookupHistory,
    Spending,
    above_all,
    lowest_score,
    spending,
)
from policies.cache.semantic.decision.features import FEATURES
from policies.cache.semantic.decision.logistic import Floats, calibrated, fit
from policies.cache.semantic.decision.proposal import propose
from policies.cache.semantic.decision.rolling_rows import RollingRows

MIN_LABELS = 100
"""Below so many labels nothing is served."""

_WINDOW = 3000
"""Labels, and look-ups with a candidate, that count."""
_REFIT_LABELS = 10

_TARGET = 0.75
"""The share of the bound that is aimed at: what chance may add must fit in the rest."""
_MAX_HASTE = 1.2
"""How far above the target serving may go while little of the budget is spent."""
_MIN_HASTE = 0.6
"""What is still allowed where a little more than the budget seems to be spent: the estimate is no better than that."""
_MAX_DEBT = 1.0
"""How much of the budget of the look-ups ahead may seem to be spent before nothing is served at all."""
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

#         bias cosine near share margin good bad guard overlap swapped reordered
_PRIOR = np.array([0.0, 4.0, 0.0, 1.0, 1.0, 0.0, 0.0, -3.0, 3.0, -2.0, -2.0])
"""What is believed of the features before the first label: the direction of each, worth about one label of strength."""
_RIDGE = np.array([1e-3, *[1.0] * len(FEATURES)])

_VERSION = 1
_MAGIC = b"slipstream verified\x00"


class _Learned(msgspec.Struct, frozen=True):
    version: int
    features: tuple[str, ...]
    labels: bytes
    seen: bytes
    fitted: list[float]
    weights: list[float] | None
    threshold: float
    num_labels: int
    num_lookups: int
    num_served: int
    num_doubts: int
    alert: int
    recent: list[tuple[float, bool]]
    spent: float
    spent_upper: float
    is_spent_up: bool


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
        self._num_lookups = 0
        self._num_served = 0
        self._num_doubts = 0
        self._fitted: Floats = _PRIOR
        self._weights: list[float] | None = None
        self._threshold = math.inf
        self._num_labels = 0
        self._alert = 0
        self._recent: deque[tuple[float, bool]] = deque(maxlen=_DOUBT_LABELS)
        self._spent = Spending(0.0, 0.0)
        self._is_spent_up = False

    def propose(self, text: str, candidates: Sequence[Candidate]) -> Proposal | None:
        """The best candidate by vote of answers; None where nothing is near enough."""
        return propose(text, candidates)

    def decide(self, proposal: Proposal | None) -> Decision:
        """Once for every look-up: counts it. One without a candidate makes no room for wrong answers elsewhere."""
        self._num_lookups += 1
        if proposal is None:
            return Decision(False, False, 1.0, -math.inf, self._threshold, "no_candidate")
        score = self._score(proposal)
        reason = self._reason(proposal, score)
        serve = reason in ("served", "would_hit")
        self._seen.append((*proposal.features, float(serve)))
        self._num_served += serve
        if reason != "served":
            return Decision(False, False, 1.0, score, self._threshold, reason)
        probability = self._shadow_probability(score)
        return Decision(True, self._random.random() < probability, probability, score, self._threshold, reason)

    def label(self, proposal: Proposal, *, is_right: bool, weight: float, was_served: bool) -> None:
        """The proposal was found right or wrong. `weight`: 1 after a miss, 1 / probability after a shadow check.

        Every label counts once, whatever its weight: which answers are checked depends on the score alone, and so does
        what the model expects of them; feedback is one answer as well. Each 10th label, and each that finds a served
        answer wrong, fits the model anew: at most 2.5 ms with a full window, little enough to stay on the event loop.
        """
        score = self._score(proposal)
        self._labels.append((*proposal.features, float(is_right), float(was_served)))
        self._num_labels += 1
        if was_served:
            self._recent.append((max(_wrong(score), _DOUBT_MIN_WRONG), not is_right))
            self._alert = _ALERT_HITS if not is_right else self._alert
            if not is_right and self._is_in_doubt():
                self._num_doubts += 1
                self._forget()
                return
        if self._num_labels % _REFIT_LABELS == 0 or (was_served and not is_right):
            self._refit()

    def state(self) -> PolicyState:
        """What has been learned. `mode` is observe while nothing is served for want of trust or of budget."""
        stands_back = self._is_spent_up or (self._num_doubts > 0 and self._num_labels < MIN_LABELS)
        per_lookup = 1.0 / max(1, len(self._seen))
        return PolicyState(
            mode="observe" if stands_back else self._mode,
            labels=self._num_labels,
            lookups=self._num_lookups,
            served=self._num_served,
            threshold=self._threshold,
            spent=self._spent.mean,
            wrong_hit_rate=self._spent.mean * per_lookup,
            wrong_hit_rate_upper=self._spent.upper * per_lookup,
        )

    def dump(self) -> bytes:
        """Everything, to go on with after a restart or in another replica."""
        learned = _Learned(
            version=_VERSION,
            features=FEATURES,
            labels=self._labels.dump(),
            seen=self._seen.dump(),
            fitted=self._fitted.tolist(),
            weights=self._weights,
            threshold=self._threshold,
            num_labels=self._num_labels,
            num_lookups=self._num_lookups,
            num_served=self._num_served,
            num_doubts=self._num_doubts,
            alert=self._alert,
            recent=list(self._recent),
            spent=self._spent.mean,
            spent_upper=self._spent.upper,
            is_spent_up=self._is_spent_up,
        )
        packed = msgspec.msgpack.encode(learned)
        return seal(_MAGIC, b"", packed)

    def load(self, dumped: bytes) -> None:
        """Take over what was dumped. Raises: ValueError where it is of another version or damaged."""
        learned = _unpacked(dumped)
        labels, seen = RollingRows(_WINDOW, len(FEATURES) + 2), RollingRows(_WINDOW, len(FEATURES) + 1)
        labels.load(learned.labels)
        seen.load(learned.seen)
        self._labels, self._seen = labels, seen
        self._fitted = np.array(learned.fitted)
        self._weights = learned.weights
        self._threshold = learned.threshold
        self._num_labels = learned.num_labels
        self._num_lookups = learned.num_lookups
        self._num_served = learned.num_served
        self._num_doubts = learned.num_doubts
        self._alert = learned.alert
        self._recent = deque(learned.recent, _DOUBT_LABELS)
        self._spent = Spending(learned.spent, learned.spent_upper)
        self._is_spent_up = learned.is_spent_up

    def _forget(self) -> None:
        """Know nothing, and so serve nothing."""
        self._labels.clear()
        self._seen.clear()
        self._fitted = _PRIOR
        self._weights = None
        self._threshold = math.inf
        self._num_labels = 0
        self._alert = 0
        self._recent.clear()
        self._spent = Spending(0.0, 0.0)
        self._is_spent_up = False

    def _score(self, proposal: Proposal) -> float:
        weights = self._weights if self._weights is not None else _PRIOR.tolist()
        return float(weights[0] + sum(map(float.__mul__, weights[1:], proposal.features)))

    def _reason(self, proposal: Proposal, score: float) -> str:
        if self._num_labels < MIN_LABELS or self._weights is None:
            return "learning"
        if proposal.guarded and self._guard_is_veto:
            return "guarded"
        if score < self._threshold:
            return "budget" if self._is_spent_up else "below_threshold"
        return "served" if self._mode == "verified" else "would_hit"

    def _shadow_probability(self, score: float) -> float:
        if self._alert:
            self._alert -= 1
            return _MAX_SHADOW
        # Sampling as the square root of the risk finds the number of wrong ones with the fewest checks.
        wanted = _SHADOW_SCALE * math.sqrt(_wrong(score) / self._bound.share)
        return min(_MAX_SHADOW, max(_MIN_SHADOW, wanted))

    def _is_in_doubt(self) -> bool:
        expected = sum(probability for probability, _ in self._recent)
        num_wrong = sum(is_wrong for _, is_wrong in self._recent)
        fewer = sum(expected**count / math.factorial(count) for count in range(num_wrong))
        return 1.0 - math.exp(-expected) * fewer < _DOUBT_PROBABILITY

    def _refit(self) -> None:
        if self._num_labels < MIN_LABELS:
            return
        rows = self._labels.rows.astype(np.float64)
        is_right, was_served = rows[:, -2].copy(), rows[:, -1] > 0
        inputs = np.column_stack([np.ones(len(rows)), rows[:, :-2]])
        self._fitted = fit(
            inputs, is_right, prior=_PRIOR, ridge=_RIDGE, start=self._fitted, steps=8 if self._weights is None else 3
        )
        weights = calibrated(self._fitted, inputs, is_right)
        self._weights = weights.tolist()

        labelled = Labelled(inputs @ weights, 1.0 - is_right, was_served)
        seen_rows = self._seen.rows.astype(np.float64)
        if not len(seen_rows):
            # Labels of other replicas alone: what is asked here is not known yet.
            return
        seen = LookupHistory(seen_rows[:, :-1] @ weights[1:] + weights[0], seen_rows[:, -1] > 0)
        self._spent = spending(labelled, seen)
        self._set_threshold(labelled, seen)

    def _set_threshold(self, labelled: Labelled, seen: LookupHistory) -> None:
        target = _TARGET * self._bound.share
        of_served = self._bound.min_precision is not None
        num_counted = int(seen.was_served.sum()) if of_served else len(seen.scores)
        left = (target * (num_counted + _HEAD_START) - self._spent.mean) / _AHEAD
        self._is_spent_up = left < -_MAX_DEBT * target
        allowed = 0.0 if self._is_spent_up else min(_MAX_HASTE, max(_MIN_HASTE, left / target)) * target
        if math.isinf(self._threshold):
            self._threshold = above_all(labelled)
        safe = lowest_score(labelled, seen, allowed=allowed, of_served=of_served)
        self._threshold = max(safe, self._threshold - _MAX_LOOSENING)


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

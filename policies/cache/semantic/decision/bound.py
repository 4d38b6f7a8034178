"""The lowest score from which answers may be served: what the model expects to go wrong, held against what has.

The model's probabilities are believed as far as labels bear them out. Above every score the number of wrong labels is
compared with the number that the model expected among these labels; a Gamma prior draws their ratio towards 1, and the
upper limit of the ratio multiplies what the model expects of all look-ups. So an over-confident model is corrected by
the labels that it got wrong, and needs few of them: a ratio is known better than a rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.decision.logistic import Floats, wrong_probability

Flags = NDArray[np.bool_]

MIN_WRONG = 0.0005
"""No answer is thought likelier to be right than this allows, whatever the model says."""

_PRIOR_WRONG = 4.0
"""Strength of the belief in the model, in wrong labels. With 2 hits of three seeds lay twice as far apart or more."""

_DEVIATIONS = 0.75
"""Standard deviations by which the ratio is raised for the threshold."""

_DEVIATIONS_95 = 1.645


@dataclass(frozen=True, slots=True)
class Bound:
    """What may go wrong at most: `max_wrong_hit_rate`, of look-ups, or `min_precision`, the right of the served.

    Raises: ValueError for a bound that promises nothing or cannot be kept.
    """

    max_wrong_hit_rate: float | None = 0.01
    min_precision: float | None = None

    def __post_init__(self) -> None:
        if (self.max_wrong_hit_rate is None) == (self.min_precision is None):
            raise ValueError("give max_wrong_hit_rate or min_precision, not both and not none")
        rate, precision = self.max_wrong_hit_rate, self.min_precision
        # Written so that a number that is none fails too.
        if rate is not None and not 0.0001 <= rate <= 0.2:
            raise ValueError(f"max_wrong_hit_rate is {rate}; it must be from 0.0001 to 0.2")
        if precision is not None and not 0.5 <= precision <= 0.9999:
            raise ValueError(f"min_precision is {precision}; it must be from 0.5 to 0.9999")

    @property
    def share(self) -> float:
        """The share that may be wrong, of look-ups or of served answers."""
        return self.max_wrong_hit_rate if self.max_wrong_hit_rate is not None else 1.0 - (self.min_precision or 0.0)


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labels under the present model. scores: [labels], log odds of being right; is_wrong: [labels] of 0 or 1;
    was_served: [labels], those that a check of a served answer gave."""

    scores: Floats
    is_wrong: Floats
    was_served: Flags


@dataclass(frozen=True, slots=True)
class LookupHistory:
    """Look-ups that had a candidate, under the present model. scores: [look-ups]; was_served: [look-ups] of bool."""

    scores: Floats
    was_served: Flags


@dataclass(frozen=True, slots=True)
class Spending:
    """Wrong answers among those served, as estimated: `mean`, and `upper`, the 95 % limit."""

    mean: float
    upper: float


def spending(labelled: Labelled, seen: LookupHistory) -> Spending:
    """How many of the served answers were wrong, by the model and by how it has fared among labels as good."""
    served = seen.scores[seen.was_served]
    if not len(served):
        return Spending(0.0, 0.0)
    expected = float(np.maximum(wrong_probability(served), MIN_WRONG).sum())
    checked = labelled.was_served
    num_wrong = float(labelled.is_wrong[checked].sum()) + _PRIOR_WRONG
    num_expected = float(np.maximum(wrong_probability(labelled.scores[checked]), MIN_WRONG).sum()) + _PRIOR_WRONG
    return Spending(
        expected * num_wrong / num_expected,
        expected * (num_wrong + _DEVIATIONS_95 * num_wrong**0.5) / num_expected,
    )


def lowest_score(labelled: Labelled, seen: LookupHistory, *, allowed: float, of_served: bool) -> float:
    """The score from which serving is expected to go wrong in at most `allowed` of look-ups, or of the served ones.

    Among the scores of labels; above all of them where none will do. There must be a label and a look-up.
    """
    order = np.argsort(-labelled.scores, kind="stable")
    scores = labelled.scores[order]
    num_wrong = np.cumsum(labelled.is_wrong[order]) + _PRIOR_WRONG
    num_expected = np.cumsum(np.maximum(wrong_probability(scores), MIN_WRONG)) + _PRIOR_WRONG
    ratio = (num_wrong + _DEVIATIONS * np.sqrt(num_wrong)) / num_expected

    falling = -np.sort(-seen.scores)
    expected = np.concatenate([[0.0], np.cumsum(np.maximum(wrong_probability(falling), MIN_WRONG))])
    num_above = np.searchsorted(-falling, -scores, side="right")
    num_counted = np.maximum(num_above, 1) if of_served else len(falling)
    too_risky = np.flatnonzero(expected[num_above] * ratio / num_counted > allowed)

    num_safe = int(too_risky[0]) if len(too_risky) else len(scores)
    return float(scores[num_safe - 1]) if num_safe else above_all(labelled)


def above_all(labelled: Labelled) -> float:
    """A score that no label reached."""
    return float(labelled.scores.max()) + 0.5

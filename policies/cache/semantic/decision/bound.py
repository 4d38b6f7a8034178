"""The lowest score from which answers may be served: what the model expects to go wrong, held against what has.

The model's probabilities are believed as far as labels bear them out. Above every score one number says how many times
likelier wrong answers are than the model expects. What is known of that ratio follows from the labels above the score:
a Gamma prior draws it towards 1, each label counts as much as its comparison can tell, and its upper limit multiplies
what the model expects of all look-ups. So an over-confident model is corrected by the labels that it got wrong, and
needs few of them: a ratio is known better than a rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.decision.logistic import Floats, wrong_probability

MIN_WRONG = 0.0005
"""No answer is thought likelier to be right than this allows, whatever the model says."""

_PRIOR_WRONG = 4.0
"""Strength of the belief in the model, in wrong labels. With 2 hits of three seeds lay twice as far apart or more."""

_RATIOS = np.geomspace(1 / 16, 32, 64)
_LOG_PRIOR = _PRIOR_WRONG * (np.log(_RATIOS) - _RATIOS)
"""Of a Gamma distribution with mean 1; the logarithm of the grid's own spacing is in it."""
_MAX_STEPS = 128
"""Scores that are tried as thresholds, with as many labels between each two."""

DEVIATIONS = 0.75
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
    """Labels under the present model. scores: [labels], log odds of being right; evidence: [labels], the log odds that
    the comparisons gave."""

    scores: Floats
    evidence: Floats


@dataclass(frozen=True, slots=True)
class ServedHistory:
    """Served answers under the model that served each, which no later one scores anew: what was learned from them would
    else be held against them twice. scores: [served], of all; checked, evidence: [checks], of those that were checked.
    """

    scores: Floats
    checked: Floats
    evidence: Floats


@dataclass(frozen=True, slots=True)
class Spending:
    """Wrong answers among those served, as estimated: `mean`, and `upper`, the 95 % limit."""

    mean: float
    upper: float


def spending(served: ServedHistory) -> Spending:
    """How many of the served answers were wrong, by what was expected and how that has fared where it was checked."""
    if not len(served.scores):
        return Spending(0.0, 0.0)
    expected = float(np.maximum(wrong_probability(served.scores), MIN_WRONG).sum())
    _, mean, deviation = _ratios(served.checked, served.evidence)
    return Spending(expected * float(mean[-1]), expected * float(mean[-1] + _DEVIATIONS_95 * deviation[-1]))


def lowest_score(
    labelled: Labelled, seen: Floats, *, allowed: float, of_served: bool, deviations: float = DEVIATIONS
) -> float:
    """The score from which serving is expected to go wrong in at most `allowed` of look-ups, or of the served ones.

    `seen`: [look-ups] with a candidate, their scores. Among the scores of labels; above all of them where none will do.
    There must be a label and a look-up.
    """
    order = np.argsort(-labelled.scores, kind="stable")
    scores = labelled.scores[order]
    ends, mean, deviation = _ratios(scores, labelled.evidence[order])
    ratio = mean + deviations * deviation

    tried = scores[ends - 1]
    falling = -np.sort(-seen)
    expected = np.concatenate([[0.0], np.cumsum(np.maximum(wrong_probability(falling), MIN_WRONG))])
    num_above = np.searchsorted(-falling, -tried, side="right")
    num_counted = np.maximum(num_above, 1) if of_served else len(falling)
    too_risky = np.flatnonzero(expected[num_above] * ratio / num_counted > allowed)

    num_safe = int(too_risky[0]) if len(too_risky) else len(tried)
    return float(tried[num_safe - 1]) if num_safe else above_all(labelled)


def above_all(labelled: Labelled) -> float:
    """A score that no label reached."""
    return float(labelled.scores.max()) + 0.5


def _ratios(scores: Floats, evidence: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    """How many times the odds of a wrong answer are what the model says, as far as the first so many labels tell.

    Three arrays of one length: how many labels, rising up to all; the mean and the standard deviation of the ratio.
    """
    odds = np.maximum(np.exp(-np.clip(scores, -30.0, 30.0)), MIN_WRONG)[None]
    raised = _RATIOS[:, None] * odds
    doubt = wrong_probability(evidence)[None]
    likelihood = (1.0 - doubt + doubt * raised) / (1.0 + raised)
    stride = max(1, -(-len(scores) // _MAX_STEPS))
    starts = np.arange(0, len(scores), stride)
    if len(scores):
        # The product of a few is far from what a double holds, and costs less than their logarithms.
        of_steps = np.log(np.multiply.reduceat(likelihood, starts, axis=1))
        ends = np.minimum(starts + stride, len(scores))
    else:
        of_steps, ends = np.zeros((len(_RATIOS), 1)), np.zeros(1, np.int64)
    log_posterior = np.cumsum(of_steps, axis=1) + _LOG_PRIOR[:, None]
    weight = np.exp(log_posterior - log_posterior.max(axis=0))
    weight /= weight.sum(axis=0)
    mean = _RATIOS @ weight
    return ends, mean, np.sqrt(np.maximum((_RATIOS**2) @ weight - mean**2, 0.0))

"""What pairs of answers say of a candidate: a sequential test of which is better, its cost with limits, its agreement.

Of pairs of which both answers are as good nothing is learned. Of the others, in which one is better, an equal candidate
wins half; one that is `margin` of all calls worse wins (1 - margin / share of such pairs) / 2. The test is Wald's
(Sequential Analysis, 1947; written from the definition), with that share as it is seen.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import msgspec

from policies.mirror.settings import PromotionPolicy
from policies.shares import SURE, limits_of_share

Verdict = Literal["open", "promote", "worse", "dear", "undecided"]
_MIN_PAIRS = 200
_MIN_COSTS = 30
_LEAST_CHANCE = 0.001
_MANY_LOOKS = 20
"""A limit that is looked at after every pair is passed by chance more often than one that is looked at once."""


class MirrorLimits(msgspec.Struct, frozen=True):
    """An estimate, and between which limits it is with 95 % confidence."""

    value: float
    low: float
    high: float


class Evidence:
    """Of one candidate. All it holds are sums."""

    def __init__(self) -> None:
        self.num_pairs = 0
        """Of which is known which answer is better, or that they are as good."""
        self.wins = 0
        self.losses = 0
        self.agreed = 0
        self.compared = 0
        """Pairs of which is known whether they say the same."""
        self.num_answers = 0
        """Of both, whose times are known."""
        self.seconds = [0.0, 0.0]
        """Of the route's answers, and of the candidate's, in all."""
        self._costs = 0
        self._ours = self._theirs = self._ours_squared = self._theirs_squared = self._product = 0.0

    def note_agreement(self, *, is_same: bool) -> None:
        """Whether two answers say the same."""
        self.compared += 1
        self.agreed += is_same

    def note_pair(self, better: Literal["ours", "theirs", "neither"]) -> None:
        """Whose answer is the better one."""
        self.num_pairs += 1
        self.wins += better == "theirs"
        self.losses += better == "ours"

    def note_seconds(self, ours: float, theirs: float) -> None:
        """How long both answers took."""
        self.num_answers += 1
        self.seconds[0] += ours
        self.seconds[1] += theirs

    def note_cost(self, ours: float, theirs: float) -> None:
        """What both answers to a call cost."""
        self._costs += 1
        self._ours += ours
        self._theirs += theirs
        self._ours_squared += ours * ours
        self._theirs_squared += theirs * theirs
        self._product += ours * theirs

    @property
    def agreement(self) -> MirrorLimits | None:
        """The share of answers that say the same (Wilson's limits); None where nothing is known."""
        if not self.compared:
            return None
        return MirrorLimits(self.agreed / self.compared, *limits_of_share(self.agreed, self.compared))

    @property
    def gain(self) -> MirrorLimits | None:
        """How much more often the candidate is better than worse, as a share of all pairs; None without any."""
        n = self.num_pairs
        if not n:
            return None
        value = (self.wins - self.losses) / n
        half = SURE * math.sqrt(max((self.wins + self.losses) / n - value * value, 0.0) / n)
        return MirrorLimits(value, value - half, value + half)

    @property
    def cost(self) -> MirrorLimits | None:
        """What the candidate costs, as a share of what the route does (ratio estimator); None of too few."""
        if self._costs < _MIN_COSTS or self._ours <= 0:
            return None
        ratio = self._theirs / self._ours
        spread = self._theirs_squared - 2 * ratio * self._product + ratio * ratio * self._ours_squared
        half = SURE * math.sqrt(max(spread, 0.0)) / self._ours
        return MirrorLimits(ratio, ratio - half, ratio + half)

    def verdict(self, rule: PromotionPolicy) -> Verdict:
        """What the rule makes of it."""
        if self.num_pairs < _MIN_PAIRS:
            return "open"
        against = self._against(rule.margin)
        bound = math.log((1 - rule.errors) / rule.errors)
        if against >= bound:
            return "worse"
        is_over = self.num_pairs >= rule.max_pairs
        # Who hardly ever loses at all cannot be so much worse, though there are no wins to weigh that against.
        many = NormalDist().inv_cdf(1 - rule.errors / _MANY_LOOKS)
        is_safe = limits_of_share(self.losses, self.num_pairs, many).high < rule.margin
        if against > -bound and not is_safe:
            return "undecided" if is_over else "open"
        cost = self.cost
        if rule.cost_below is None or (cost is not None and cost.high < rule.cost_below):
            return "promote"
        if cost is not None and cost.low > rule.cost_below:
            return "dear"
        return "undecided" if is_over else "open"

    def _against(self, margin: float) -> float:
        """The log likelihood ratio of a candidate that is `margin` worse to one that is equal."""
        # The more of such pairs there are, the less one of them says: their share may be higher than it is seen.
        share = limits_of_share(self.wins + self.losses, self.num_pairs).high
        chance = max((1 - margin / share) / 2, _LEAST_CHANCE)
        return self.wins * math.log(2 * chance) + self.losses * math.log(2 * (1 - chance))

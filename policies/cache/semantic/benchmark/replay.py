"""One contender over one stream: what it served, and how much of that was wrong."""

from __future__ import annotations

import math
from itertools import accumulate

import msgspec

from policies.cache.semantic.benchmark.contenders import CacheContender
from policies.cache.semantic.benchmark.streams import QuestionStream
from policies.cache.semantic.benchmark.upstream import Upstream

_LEARNING = 500
_LAST = 500


class ReplayCounts(msgspec.Struct, frozen=True):
    """Counts of one replay. `checks`: upstream calls beyond those that misses took. `cpu_us`: of propose and decide, by
    look-up; None for a contender that does neither. `worst_500`, `worst_1000`: the most wrong answers of any so many
    look-ups on end after the first 500. `last_hits`: of the last 500."""

    asked: int
    hits: int
    wrong: int
    checks: int
    cpu_us: float | None = None
    worst_500: int = 0
    worst_1000: int = 0
    last_hits: int = 0

    @property
    def hit_rate(self) -> float:
        """Served, of look-ups."""
        return self.hits / self.asked

    @property
    def wrong_rate(self) -> float:
        """Served and wrong, of look-ups."""
        return self.wrong / self.asked

    @property
    def saved_rate(self) -> float:
        """Upstream calls that were not made, checks counted, of look-ups."""
        return (self.hits - self.checks) / self.asked


def replay(stream: QuestionStream, contender: CacheContender, upstream: Upstream) -> ReplayCounts:
    """Ask every question of the stream."""
    was_hit: list[bool] = []
    was_wrong: list[bool] = []
    for query in stream.asked:
        upstream.begin()
        if stream.is_pairs:
            contender.hold_only(query - 1)
        served = contender.ask(query)
        was_hit.append(served is not None)
        was_wrong.append(served is not None and not upstream.is_right(query, served))
    asked, hits = len(was_hit), sum(was_hit)
    return ReplayCounts(
        asked,
        hits,
        sum(was_wrong),
        checks=upstream.num_calls - (asked - hits),
        worst_500=_worst(was_wrong[_LEARNING:], 500),
        worst_1000=_worst(was_wrong[_LEARNING:], 1000),
        last_hits=sum(was_hit[-_LAST:]),
    )


def _worst(was_wrong: list[bool], width: int) -> int:
    """The most wrong ones of any `width` on end."""
    sums = list(accumulate(was_wrong, initial=0))
    return max((sums[end] - sums[max(0, end - width)] for end in range(len(sums))), default=0)


def upper_limit(wrong: int, asked: int) -> float:
    """The 95 % upper limit of a rate (Clopper and Pearson, 1934), one-sided."""
    if wrong >= asked:
        return 1.0
    low, high = wrong / asked, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if _at_most(wrong, asked, middle) > 0.05:
            low = middle
        else:
            high = middle
    return high


def _at_most(wrong: int, asked: int, rate: float) -> float:
    """The chance of no more than `wrong` events among `asked`."""
    if rate <= 0.0:
        return 1.0
    logs = [
        math.lgamma(asked + 1) - math.lgamma(count + 1) - math.lgamma(asked - count + 1)
        + count * math.log(rate) + (asked - count) * math.log1p(-rate)
        for count in range(wrong + 1)
    ]  # fmt: skip
    return sum(map(math.exp, logs))

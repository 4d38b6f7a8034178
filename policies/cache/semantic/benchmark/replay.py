"""One contender over one stream: what it served, and how much of that was wrong."""

from __future__ import annotations

import math

import msgspec

from policies.cache.semantic.benchmark.contenders import CacheContender
from policies.cache.semantic.benchmark.streams import QuestionStream
from policies.cache.semantic.benchmark.upstream import Upstream


class ReplayCounts(msgspec.Struct, frozen=True):
    """Counts of one replay. `checks`: upstream calls beyond those that misses took. `cpu_us`: of propose and decide, by
    look-up; None for a contender that does neither."""

    asked: int
    hits: int
    wrong: int
    checks: int
    cpu_us: float | None = None

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
    hits = wrong = 0
    for query in stream.asked:
        if stream.is_pairs:
            contender.hold_only(query - 1)
        served = contender.ask(query)
        if served is not None:
            hits += 1
            wrong += not upstream.is_right(query, served)
    asked = len(stream.asked)
    return ReplayCounts(asked, hits, wrong, checks=upstream.num_calls - (asked - hits))


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

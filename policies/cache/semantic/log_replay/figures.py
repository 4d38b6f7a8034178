"""What a replay comes to: rates of the look-ups, the curve over static thresholds, and what they cannot tell."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev

from policies.cache.semantic.benchmark.replay import upper_limit
from policies.cache.semantic.decision.verified import MIN_LABELS
from policies.cache.semantic.learning.comparators import AnswerVerdict
from policies.cache.semantic.log_replay.replay import LogReplayResult
from policies.cache.semantic.log_replay.stand_ins import ReplayedLookup
from policies.cache.settings import CachePolicy
from policies.shares import limits_of_share

THRESHOLDS = tuple(percent / 100 for percent in range(70, 101))
"""Cosines of the curve."""

_SHOWN = (0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 1.0)
_BATCHES, _T_OF_BATCHES = 10, 2.262
"""Parts of the last half, and Student's t for a mean of so many, 19 times in 20."""
_MIN_BATCH = 20
_MANY_VERBATIM = 0.9
_SAME = 1e-4
"""Equal texts have a cosine of 1 but for rounding."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of so many look-ups, 0..1. `unknown` were served, and nothing tells whether they were right."""

    lookups: int
    hits: float
    wrong: float
    unknown: float


@dataclass(frozen=True, slots=True)
class Point:
    """What a static threshold would have done."""

    threshold: float
    rates: Rates


@dataclass(frozen=True, slots=True)
class AllowedErrors:
    """What the policy allows: wrong answers of look-ups, or of served ones where `is_of_served`."""

    share: float
    is_of_served: bool = False

    @property
    def text(self) -> str:
        """As the policy says it."""
        return f"min_precision: {1 - self.share:g}" if self.is_of_served else f"max_wrong_hit_rate: {self.share:g}"


@dataclass(frozen=True, slots=True)
class Expected:
    """The share of look-ups that would be served from here on, 0..1, and between what it lies 19 times in 20."""

    hits: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Again:
    """Calls that were made again in the very same words, and how the log answers them: shares, 0..1. `same`: called
    the same as the answer before, between `low` and `high` 19 times in 20; `verbatim`: equal to it, of the same.
    """

    asked: int
    verbatim: float
    same: float
    low: float
    high: float
    different: float


@dataclass(frozen=True, slots=True)
class LogReport:
    """Everything that is told. `notes` are what the figures cannot tell. `expected` is None where too few were looked
    up, `again` where nothing was asked again.
    """

    route: str
    bound: AllowedErrors
    exchanges: int
    skipped: int
    exact: int
    left_alone: dict[str, int]
    missed: dict[str, int]
    verified: Rates
    last_quarter: Rates
    expected: Expected | None
    again: Again | None
    wrong_upper_95: float
    first_served: int | None
    checks: int
    labels: dict[str, int]
    curve: list[Point]
    notes: list[str]


def report(replayed: LogReplayResult, route: str, policy: CachePolicy, *, skipped: int) -> LogReport:
    """The figures of a replay."""
    semantic = policy.semantic
    assert semantic is not None, "it was replayed"
    precision = semantic.min_precision
    bound = (
        AllowedErrors(semantic.max_wrong_hit_rate)
        if precision is None
        else AllowedErrors(1.0 - precision, is_of_served=True)
    )
    served = replayed.served
    verified = _rates(served)
    wrong = sum(verdict is AnswerVerdict.DIFFERENT for verdict in served)
    again = _again(replayed)
    first = next((number for number, verdict in enumerate(served, 1) if verdict is not None), None)
    return LogReport(
        route=route,
        bound=bound,
        exchanges=replayed.num_exchanges,
        skipped=skipped,
        exact=replayed.num_exact,
        left_alone=_sorted(replayed.left_alone),
        missed=_sorted(replayed.missed),
        verified=verified,
        last_quarter=_rates(served[len(served) * 3 // 4 :]),
        expected=_expected(served[len(served) // 2 :]),
        again=again,
        wrong_upper_95=upper_limit(wrong, len(served)) if served else 1.0,
        first_served=first,
        checks=replayed.num_checks,
        labels={verdict.value: replayed.compared[verdict] for verdict in AnswerVerdict},
        curve=[Point(threshold, _static(replayed.seen, threshold)) for threshold in THRESHOLDS],
        notes=_notes(replayed, verified, again, policy),
    )


def as_json(made: LogReport) -> str:
    """For programs: shares are 0..1."""
    return json.dumps(asdict(made), indent=2)


def as_text(made: LogReport) -> str:
    """For people: percent."""
    head = f"route {made.route}, mode: verified, {made.bound.text}"
    calls = [
        ("exchanges", made.exchanges, ""),
        ("answered by the exact cache", made.exact, ""),
        ("left alone", sum(made.left_alone.values()), _listed(made.left_alone)),
        ("looked up", made.verified.lookups, ""),
        *([("lines skipped", made.skipped, "not exchanges; none of the above")] if made.skipped else []),
    ]
    lines = [head, "", *(f"{name:<28} {count:>9,}  {why}".rstrip() for name, count, why in calls), ""]
    if not made.verified.lookups:
        return "\n".join([*lines, "Nothing was looked up, so there is nothing to tell."])
    last = made.last_quarter
    rows = [
        ("served", made.verified.hits, last.hits),
        ("  found wrong", made.verified.wrong, last.wrong),
        ("  not comparable", made.verified.unknown, last.unknown),
    ]
    lines.append(f"{'of look-ups':<28} {'all':>9} {'last quarter':>13}")
    lines += [f"{name:<28} {_percent(whole):>9} {_percent(end):>13}" for name, whole, end in rows]
    lines.append(f"95 % upper limit of found wrong: {_percent(made.wrong_upper_95)}; checks made: {made.checks:,}")
    if made.expected is not None:
        lines.append(f"to expect from here on: {_between(made.expected.hits, made.expected)} of look-ups served")
    if made.again is not None:
        again = made.again
        lines.append(
            f"asked again word for word: {again.asked:,}; the log's own answers are called the same in "
            f"{_between(again.same, again)}, different in {_percent(again.different)}"
        )
    if made.first_served is not None:
        lines.append(f"first answer served at look-up {made.first_served:,}")
    lines += [f"not served: {_listed(made.missed)}", ""]
    lines.append(f"{'mode: static, threshold':<28} {'served':>9} {'found wrong':>13} {'not comparable':>15}")
    for point in made.curve:
        if point.threshold in _SHOWN:
            rates = point.rates
            lines.append(
                f"{point.threshold:<28.2f} {_percent(rates.hits):>9} {_percent(rates.wrong):>13} "
                f"{_percent(rates.unknown):>15}"
            )
    return "\n".join([*lines, "", *made.notes])


def _expected(served: Sequence[AnswerVerdict | None]) -> Expected | None:
    """Of the half in which most has been learned. What is asked comes in waves, so that look-ups are no independent
    draws: how far the half's tenths lie apart says how sure their mean is (method of batch means).
    """
    width = len(served) // _BATCHES
    if width < _MIN_BATCH:
        return None
    last = served[-width * _BATCHES :]
    shares = [
        sum(verdict is not None for verdict in last[at : at + width]) / width for at in range(0, len(last), width)
    ]
    middle, half = fmean(shares), _T_OF_BATCHES * stdev(shares) / len(shares) ** 0.5
    return Expected(middle, max(0.0, middle - half), min(1.0, middle + half))


def _again(replayed: LogReplayResult) -> Again | None:
    asked = replayed.again.total()
    if not asked:
        return None
    same, different = replayed.again[AnswerVerdict.SAME], replayed.again[AnswerVerdict.DIFFERENT]
    limits = limits_of_share(same, asked)
    return Again(asked, replayed.num_verbatim / asked, same / asked, *limits, different / asked)


def _between(share: float, limits: Expected | Again) -> str:
    return f"{_percent(share)} (95 %: {_percent(limits.low)} to {_percent(limits.high)})"


def _on_wording(again: Again | None) -> str:
    """What the wording of the log's answers means for hits."""
    if again is None:
        return (
            "No call was made twice in the very same words, so how differently your model words one answer is not "
            "known; the hits above are those of the answers as they stand in the log."
        )
    if again.verbatim > _MANY_VERBATIM:
        return (
            f"Of calls that were made again {_percent(again.verbatim)} were answered to the letter as before: where "
            "the log was written behind a cache, or each meaning has one wording, its hits flatter those of a model "
            "that words its answers anew."
        )
    return (
        f"Your model words its answers anew: of two of them to the very same call {_percent(again.same)} are called "
        "the same. The others count against serving; a judge, or a lower temperature, brings hits nearer to those of "
        "one wording."
    )


def _notes(replayed: LogReplayResult, verified: Rates, again: Again | None, policy: CachePolicy) -> list[str]:
    notes = ["The answers of the log are taken for right, and compared as the live cache compares them."]
    notes.append(_on_wording(again))
    compared = replayed.compared
    num_unknown = compared[AnswerVerdict.UNKNOWN]
    if num_unknown:
        notes.append(
            f"Of {compared.total():,} pairs of answers {num_unknown:,} could not be compared: whether they agree "
            "is not known."
        )
    if verified.unknown:
        notes.append(
            f"Wrong answers served lie between {_percent(verified.wrong)} and "
            f"{_percent(verified.wrong + verified.unknown)} of look-ups: for the rest nothing tells."
        )
    if policy.semantic is not None and policy.semantic.judge is not None:
        notes.append("The policy's judge was not asked: nothing is sent. With it fewer pairs stay without a verdict.")
    if policy.scope != "global" and not replayed.names_tenants:
        notes.append("The log names no tenants: all of it counts as one's, which shares more than several would.")
    if policy.scope in ("key", "global") and not replayed.names_keys:
        notes.append("The log names no keys: all of it counts as one's, which is given more than several would be.")
    if replayed.num_labels < MIN_LABELS:
        notes.append(
            f"No tenant's calls gave more than {replayed.num_labels} labels, and nothing is served below {MIN_LABELS}: "
            "the log is too short to judge by, or its answers cannot be compared."
        )
    notes.append("Thresholds are held against a cache that keeps every answer; a bound is promised by none of them.")
    return notes


def _rates(served: Sequence[AnswerVerdict | None]) -> Rates:
    counts = Counter(served)
    num = len(served)
    hits = num - counts[None]
    return Rates(
        num, _share(hits, num), _share(counts[AnswerVerdict.DIFFERENT], num), _share(counts[AnswerVerdict.UNKNOWN], num)
    )


def _static(seen: Sequence[ReplayedLookup], threshold: float) -> Rates:
    served = [one for one in seen if one.similarity is not None and one.similarity >= threshold - _SAME]
    num = len(seen)
    wrong = sum(one.verdict is AnswerVerdict.DIFFERENT for one in served)
    unknown = sum(one.verdict is AnswerVerdict.UNKNOWN for one in served)
    return Rates(num, _share(len(served), num), _share(wrong, num), _share(unknown, num))


def _share(count: int, of: int) -> float:
    return count / of if of else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(counts.most_common())


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"

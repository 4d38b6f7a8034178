"""Which part of one answer says what which part of the other says, and what of an answer says nothing: as numbers.

Answers are held against each other sentence by sentence: the sentence whose partner says something else decides, and
sentences that only greet, lead over or advise may be missing. Orders differ freely, so they are told apart only where
words such as "then" make something of them. What stands under a heading is said of that alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.cache.semantic.sameness.alignment import EncodedPart
from policies.cache.semantic.sameness.clauses.directions import are_turned
from policies.cache.semantic.sameness.clauses.identity import say_what_is_what
from policies.cache.semantic.sameness.clauses.opposites import are_opposite, have_one_of_two
from policies.cache.semantic.sameness.forms import SURE
from policies.cache.semantic.sameness.parts import AnswerParts

MATCH_FEATURES = (
    "worst",
    "worst_of_other",
    "second_worst",
    "all_matched",
    "all_matched_of_other",
    "least_odds",
    "least_odds_of_other",
    "mean_odds",
    "contents",
    "contents_ratio",
    "partners_shared",
    "inverted",
    "inverted_in_order",
)
"""`worst`: the probability that a part matters and has no partner, of the part where that is highest; `all_matched`:
log probability that there is none such; `least_odds`: of saying the same, of the part that matters whose best partner
has the least; `_of_other`: of the answer where it is better; `contents`: how many parts matter; `inverted`: share of
pairs of parts whose partners stand the other way round."""

_MAX_DISPLACEMENT = 0.25
DISPLACED = -3.0
"""Log odds that pairs of more displacement have at most: of 461 made-up ones 22 said the same. Likewise two sentences
where who does it in one has it done in the other.
"""

_MATTERS = 0.6
"""Of `relative`: what matters less may be left out. Practical advice lies about half."""
_CANDIDATES = 2
_MUCH_FARTHER = 0.45
"""So much farther away than the nearest part none of 9,000 second ones said the same where the nearest did not."""
_MAX_ODDS = 8.0
_AS_LIKELY = 1.0
"""Log odds by which a partner is not less likely than another."""
_ORDER = re.compile(
    r"^\W*(?:first|then|next|after|before|finally|once|\d+[.)]|erst|dann|puis|ensuite|luego|poi)\b", re.I
)

Floats = NDArray[np.float32]


class PartMatch(NamedTuple):
    """Positions of a part of each answer that may say the same."""

    one: int
    other: int


class Outline(NamedTuple):
    """By which a part is found: the ids of its words, and its own vector."""

    words: frozenset[int]
    vector: Floats


def outline_of(part: EncodedPart) -> Outline:
    """Of a part."""
    return Outline(frozenset(part.ids.tolist()), part.vectors[-1].astype(np.float32))


def candidates(ones: Sequence[Outline], others: Sequence[Outline]) -> list[PartMatch]:
    """Of each part the nearest of the other answer, both ways: by their vectors and the words that they share."""
    vectors, others_vectors = (np.stack([part.vector for part in side]) for side in (ones, others))
    shared = [
        [len(one.words & other.words) / max(min(len(one.words), len(other.words)), 1) for other in others]
        for one in ones
    ]
    nearness = vectors @ others_vectors.T + 0.5 * np.array(shared, np.float32)
    return [PartMatch(*at) for at in np.argwhere(_nearest(nearness) | _nearest(nearness.T).T).tolist()]


def _nearest(nearness: Floats) -> NDArray[np.bool_]:
    """Of each row."""
    order = np.argsort(-nearness, axis=1)[:, :_CANDIDATES]
    is_nearest = np.zeros(nearness.shape, bool)
    np.put_along_axis(is_nearest, order, True, axis=1)
    is_near: NDArray[np.bool_] = nearness >= nearness.max(axis=1, keepdims=True) - _MUCH_FARTHER
    return is_nearest & is_near


def bounded(one: str, other: str, odds: float) -> float:
    """Log odds that two parts say the same, by what is told of them, and by what their words tell for certain."""
    if say_what_is_what(one, other):
        return max(odds, SURE)
    return min(odds, _most_between(one, other)) if odds > DISPLACED else odds


def _most_between(one: str, other: str) -> float:
    """By who does what to whom, what comes before what, and which words exclude each other."""
    if are_turned(one, other) or are_opposite(one, other):
        return DISPLACED
    return 0.0 if have_one_of_two(one, other) else math.inf


def match_features(
    table: NDArray[np.float64], matters: tuple[Floats, Floats], parts: tuple[AnswerParts, AnswerParts]
) -> Floats:
    """[MATCH_FEATURES], the same for both orders of the two. `table` as `match_table`; `matters`: how much each part of
    each answer says of the matter, as `relative`.
    """
    ways = [_way(table, matters[0]), _way(table.T, matters[1])]
    worse, better = sorted(ways, key=lambda way: way.all_matched)
    contents = sorted(way.contents for way in ways)
    return np.array(
        (
            worse.worst,
            better.worst,
            max(worse.second, better.second),
            worse.all_matched,
            better.all_matched,
            min(way.least for way in ways) / 4,
            max(way.least for way in ways) / 4,
            (worse.mean + better.mean) / 8,
            np.log1p(contents[1]),
            contents[0] / max(contents[1], 1e-3),
            (worse.shared + better.shared) / 2,
            (worse.inverted + better.inverted) / 2,
            (worse.inverted + better.inverted) / 2 * _has_order(parts),
        ),
        np.float32,
    )


def relative(matters: Floats) -> Floats:
    """[parts], to the part of an answer that says most of the matter: in words that nobody has met none seems to."""
    greatest = matters.max()
    shares: Floats = matters / greatest if greatest > 0 else np.ones_like(matters)
    return shares


class _Way(NamedTuple):
    worst: float
    second: float
    all_matched: float
    least: float
    mean: float
    contents: float
    shared: float
    inverted: float


def _way(table: NDArray[np.float64], matters: Floats) -> _Way:
    best, partner = table.max(axis=1), table.argmax(axis=1)
    missed = matters / (1.0 + np.exp(best))
    ranked = np.sort(missed)[::-1]
    counts = matters >= _MATTERS
    partners = partner[counts]
    pairs = [(a, b) for at, a in enumerate(partners) for b in partners[at + 1 :]]
    return _Way(
        worst=float(ranked[0]),
        second=float(ranked[1]) if len(ranked) > 1 else 0.0,
        all_matched=float(np.maximum(np.log1p(-np.minimum(missed, 1 - 1e-4)).sum(), -_MAX_ODDS)),
        least=float(best[counts].min()),
        mean=float(best[counts].mean()),
        contents=float(matters.sum()),
        shared=1.0 - len(set(partners.tolist())) / len(partners),
        inverted=sum(a > b for a, b in pairs) / max(len(pairs), 1),
    )


def most_odds(
    table: NDArray[np.float64], matters: tuple[Floats, Floats], parts: tuple[AnswerParts, AnswerParts]
) -> float:
    """Log odds that the two have at most: as many as a part that matters and what comes nearest to it, by their words;
    and `DISPLACED` where too much stands under other headings. The arguments are those of `match_features`.
    """
    ways = ((table, matters, parts), (table.T, matters[::-1], parts[::-1]))
    if max(_displaced(*way) for way in ways) > _MAX_DISPLACEMENT:
        return DISPLACED
    return min(_most_of_parts(*way) for way in ways)


def _most_of_parts(
    table: NDArray[np.float64], matters: tuple[Floats, Floats], parts: tuple[AnswerParts, AnswerParts]
) -> float:
    nearest = zip(parts[0].texts, table.argmax(axis=1), matters[0] >= _MATTERS, strict=True)
    return min(_most_between(text, parts[1].texts[at]) if counts else math.inf for text, at, counts in nearest)


def match_table(odds: dict[PartMatch, float], parts: tuple[AnswerParts, AnswerParts]) -> NDArray[np.float64]:
    """[parts of one, parts of other], log odds of each candidate, bounded, and of no others any."""
    table = np.full((len(parts[0].texts), len(parts[1].texts)), -_MAX_ODDS)
    for (one, other), told in odds.items():
        table[one, other] = np.clip(told, -_MAX_ODDS, _MAX_ODDS)
    return table


def _displaced(
    table: NDArray[np.float64], matters: tuple[Floats, Floats], parts: tuple[AnswerParts, AnswerParts]
) -> float:
    """How much the heading matters of a part whose partner stands under another one, though the other answer has that
    heading too, 0..1: of all parts the most.
    """
    under, others_under = parts[0].under, parts[1].under
    displaced = 0.0
    headings = sorted({heading for heading in others_under if heading >= 0})
    if not headings:
        return displaced
    for part, heading in enumerate(under):
        most = table[part].max()
        if heading < 0 or most <= 0:
            continue
        own = headings[int(table[heading, headings].argmax())]
        # What is said of several things alike is at home under each of them.
        found = {others_under[at] for at in np.flatnonzero(table[part] >= most - _AS_LIKELY)} - {-1}
        if table[heading, own] > 0 and found and own not in found:
            displaced = max(displaced, float(matters[0][heading] * max(matters[1][other] for other in found)))
    return displaced


def _has_order(parts: tuple[AnswerParts, AnswerParts]) -> bool:
    return any(_ORDER.match(part) is not None for side in parts for part in side.texts)

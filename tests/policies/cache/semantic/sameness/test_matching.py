"""Parts of answers and their partners, as numbers: what may be missing, what may not, and what order makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from policies.cache.semantic.sameness.alignment import EncodedPart
from policies.cache.semantic.sameness.matching import (
    DISPLACED,
    MATCH_FEATURES,
    Outline,
    PartMatch,
    candidates,
    match_features,
    match_table,
    most_odds,
    outline_of,
    relative,
)
from policies.cache.semantic.sameness.parts import AnswerParts

SAME, OTHER = 6.0, -6.0


def features(
    table: list[list[float]],
    matters: tuple[list[float], list[float]],
    texts: str = "A part.",
    under: tuple[list[int], list[int]] | None = None,
) -> dict[str, float]:
    """Of answers whose parts stand to each other like that, `under` these of each."""
    odds = {PartMatch(row, column): value for row, values in enumerate(table) for column, value in enumerate(values)}
    ones, others = (relative(np.array(side, np.float32)) for side in matters)
    places = under or tuple([-1] * len(side) for side in matters)
    parts = (AnswerParts([texts] * len(ones), places[0]), AnswerParts([texts] * len(others), places[1]))
    table = match_table(odds, parts)
    told = match_features(table, (ones, others), parts)
    back = match_table({PartMatch(b, a): value for (a, b), value in odds.items()}, (parts[1], parts[0]))
    turned = match_features(back, (others, ones), (parts[1], parts[0]))
    np.testing.assert_allclose(told, turned, atol=1e-6)
    most = most_odds(table, (ones, others), parts)
    assert most == most_odds(back, (others, ones), (parts[1], parts[0]))
    return {**dict(zip(MATCH_FEATURES, told.tolist(), strict=True)), "most": most}


def test_what_says_nothing_may_be_missing_and_what_matters_may_not() -> None:
    """A greeting without a partner, and a sentence without one."""
    greeted = features([[SAME], [OTHER]], ([1.0, 0.01], [1.0]))
    shorter = features([[SAME], [OTHER]], ([1.0, 0.99], [1.0]))

    assert greeted["worst"] < 0.02
    assert greeted["least_odds"] > 0
    assert shorter["worst"] > 0.95
    assert shorter["all_matched"] < -3
    assert shorter["all_matched_of_other"] > -0.1


def test_order_is_told_and_counts_more_where_words_make_something_of_it() -> None:
    """Facts may come in any order, steps may not."""
    crossed = [[OTHER, SAME], [SAME, OTHER]]
    facts = features(crossed, ([1.0, 1.0], [1.0, 1.0]))
    steps = features(crossed, ([1.0, 1.0], [1.0, 1.0]), "Then close it.")
    straight = features([[SAME, OTHER], [OTHER, SAME]], ([1.0, 1.0], [1.0, 1.0]), "Then close it.")

    assert (facts["inverted"], facts["inverted_in_order"]) == (1.0, 0.0)
    assert (steps["inverted"], steps["inverted_in_order"]) == (1.0, 1.0)
    assert straight["inverted_in_order"] == 0.0


# Of each answer: a heading, what stands under it, another heading, what stands under that.
_UNDER = [-1, 0, -1, 2]


def are_displaced(*partners: int, matters: float = 1.0, under: list[int] | None = None) -> bool:
    """Whether parts of one answer that have these partners in the other stand elsewhere there."""
    table = [[SAME if column == partner else OTHER for column in range(4)] for partner in partners]
    weights = [matters, 1.0, matters, 1.0]
    return features(table, (weights, weights), under=(_UNDER, _UNDER if under is None else under))["most"] == DISPLACED


def test_what_stands_under_another_heading_is_displaced() -> None:
    """Where the other answer has both headings; in whatever order they come."""
    assert not are_displaced(0, 1, 2, 3)
    assert not are_displaced(2, 3, 0, 1)
    assert are_displaced(0, 3, 2, 1)
    assert are_displaced(2, 1, 0, 3)


def test_nothing_is_displaced_without_headings_that_matter_in_both() -> None:
    """As "details" names nothing; and an answer without headings leaves nothing to compare."""
    assert not are_displaced(0, 3, 2, 1, matters=0.01)
    assert not are_displaced(0, 3, 2, 1, matters=0.49)
    assert are_displaced(0, 3, 2, 1, matters=0.51)
    assert not are_displaced(0, 3, 2, 1, under=[-1, -1, -1, -1])


def test_what_is_said_under_each_heading_is_at_home_under_each() -> None:
    """As "cancel at any time" of every plan."""
    odds = [[SAME, OTHER, OTHER, OTHER], [OTHER, SAME, OTHER, SAME], [OTHER, OTHER, SAME, OTHER]]
    told = features([*odds, odds[1]], ([1.0] * 4, [1.0] * 4), under=(_UNDER, _UNDER))
    assert told["most"] == np.inf


def test_two_parts_of_one_partner_are_told() -> None:
    """Saying one thing twice is not saying two."""
    told = features([[SAME], [SAME]], ([1.0, 1.0], [1.0]))
    assert told["partners_shared"] == pytest.approx(0.25)
    assert told["contents_ratio"] == pytest.approx(0.5)


def test_the_part_that_matters_most_counts_whatever_it_is_thought_to_say() -> None:
    """Of words that nobody has met all seem to say nothing; so do greetings, which stay behind what says more."""
    unknown = features([[OTHER], [OTHER]], ([0.01, 0.001], [0.02]))
    assert unknown["worst"] > 0.95
    assert unknown["second_worst"] < 0.11


def test_answers_of_which_nothing_matters_are_numbers_all_the_same() -> None:
    """Two greetings."""
    told = features([[OTHER]], ([0.0], [0.0]))
    assert np.isfinite([told[name] for name in MATCH_FEATURES]).all()


def test_candidates_are_the_nearest_both_ways_and_few() -> None:
    """However many parts there are, each is held against a handful."""
    random = np.random.default_rng(1)
    ones = [outline_of(EncodedPart(np.array([n], np.int32), _unit(random.standard_normal((2, 8))))) for n in range(30)]
    found = candidates(ones, ones[::-1])

    assert {PartMatch(n, 29 - n) for n in range(30)} <= set(found)
    assert len(found) <= 4 * 30


def test_second_nearest_is_no_candidate_where_it_is_much_farther() -> None:
    """It never is the one that says the same."""
    (one, near, far) = (outline(*vector) for vector in ((1.0, 0.0), (0.99, 0.1), (0.3, 0.95)))
    assert candidates([one], [near, far]) == [PartMatch(0, 0), PartMatch(0, 1)]
    assert candidates([one, far], [near, far]) == [PartMatch(0, 0), PartMatch(1, 1)]


def outline(*vector: float) -> Outline:
    """Of a part without words."""
    return Outline(frozenset(), np.array(vector, np.float32))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

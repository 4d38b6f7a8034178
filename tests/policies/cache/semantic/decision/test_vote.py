"""The vote of neighbours, by answer."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.decision.vote import FLOOR, vote
from tests.support.policy.semantic_traffic import candidate


def test_vote_of_several_beats_one_that_is_a_little_nearer() -> None:
    """Three neighbours of one answer outweigh the nearest; the winner is their nearest."""
    found = vote([
        candidate(0.90, answer="a", id="1"),
        candidate(0.89, answer="b", id="2"),
        candidate(0.88, answer="b", id="3"),
        candidate(0.87, answer="b", id="4"),
    ])  # fmt: skip

    assert found is not None
    assert found.winner.id == "2"
    assert found.margin == pytest.approx(-0.01)
    assert 0.5 < found.share < 1.0


def test_vote_of_far_neighbours_does_not_outweigh_a_near_one() -> None:
    """Nearness counts for more than number."""
    found = vote([candidate(0.95, answer="a"), *(candidate(0.6, answer="b", id=str(n)) for n in range(7))])

    assert found is not None
    assert found.winner.answer_id == "a"


@pytest.mark.parametrize("cosines", [[], [FLOOR - 0.01], [0.1, -1.0], [math.nan]])
def test_vote_without_a_near_neighbour_is_none(cosines: list[float]) -> None:
    """Nothing near enough, or nothing that is a number."""
    assert vote([candidate(cosine) for cosine in cosines]) is None


def test_vote_of_one_answer_has_the_whole_share_and_a_margin_above_the_floor() -> None:
    """Where no other answer is near, the floor stands for it."""
    found = vote([candidate(0.8)])

    assert found is not None
    assert found.share == 1.0
    assert found.margin == pytest.approx(0.8 - FLOOR + 0.1)


@given(st.lists(st.tuples(st.floats(-1, 1), st.sampled_from("abc")), max_size=8))
def test_vote_does_not_depend_on_the_order_of_distinct_neighbours(drawn: list[tuple[float, str]]) -> None:
    """The stores may answer in any order."""
    unique = dict(drawn)
    near = [candidate(cosine, answer=answer, id=str(cosine)) for cosine, answer in unique.items()]
    found, turned = vote(near), vote(near[::-1])

    assert (found is None) == (turned is None)
    if found is not None and turned is not None:
        assert found.share == pytest.approx(turned.share)
        assert 0.0 < found.share <= 1.0

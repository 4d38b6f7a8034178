"""Evidence against stored answers: what makes one suspect, what ends it, and what does neither."""

from __future__ import annotations

from random import Random

import pytest

from policies.cache.semantic.decision.bound import Bound
from policies.cache.semantic.decision.standing import Standing, StandingState
from policies.cache.semantic.decision.verified import Verified
from tests.support.policy.semantic_traffic import candidate, drive, steep

SURE = 9.0


def test_standing_one_label_makes_suspect_and_one_lifts_it() -> None:
    """An answer thought right is asked for again, once."""
    standing = Standing()
    standing.note("a", 4.0, -SURE)
    assert standing.is_suspect("a")
    assert not standing.is_gone("a")
    assert not standing.is_suspect("b")

    standing.note("a", 4.0, SURE)
    assert not standing.is_suspect("a")


def test_standing_two_in_a_row_end_an_answer_and_two_bring_it_back() -> None:
    """Also after a thousand labels for it, and however many more there were against it."""
    standing = Standing()
    for _ in range(1000):
        standing.note("a", 4.0, SURE)
    for _ in range(50):
        standing.note("a", 4.0, -SURE)
    assert standing.is_gone("a")

    standing.note("a", 4.0, SURE)
    standing.note("a", 4.0, SURE)
    assert not standing.is_suspect("a")


def test_standing_what_was_thought_wrong_or_cannot_be_told_says_nothing() -> None:
    """A far candidate that turns out wrong is no news of its answer, nor is a comparison at even odds."""
    standing = Standing()
    for _ in range(100):
        standing.note("a", -4.0, -SURE)
        standing.note("b", 6.0, 0.0)

    assert not standing.is_suspect("a")
    assert not standing.is_suspect("b")


def test_standing_what_another_neighbour_explains_is_held_against_answers_in_doubt_alone() -> None:
    """A question that is another's says nothing of the answer; where it was refuted before, its successor explains."""
    standing = Standing()
    for _ in range(50):
        standing.note("a", 4.0, -SURE, is_explained=True)
    assert not standing.is_suspect("a")

    standing.note("a", 4.0, -SURE)
    standing.note("a", 4.0, -SURE, is_explained=True)
    assert standing.is_gone("a")


def test_standing_of_ten_thousand_answers_keeps_a_thousand() -> None:
    """The latest."""
    state = StandingState()
    standing = Standing(state)
    for number in range(10_000):
        standing.note(str(number), 4.0, -SURE)
        standing.note(f"right {number}", 4.0, SURE)

    assert len(state.against) == len(state.confirmed) == 1000
    assert standing.is_suspect("9999")


@pytest.mark.parametrize(("labels_for", "is_news"), [(7, False), (8, True)])
def test_standing_once_an_answer_of_many_labels_goes_others_are_asked_for_again_once(
    labels_for: int, is_news: bool
) -> None:
    """And not for ever."""
    standing = Standing()
    for answer in ("changed", "other"):
        for _ in range(labels_for):
            standing.note(answer, 4.0, SURE)
    for _ in range(2):
        assert not standing.is_suspect("other")
        standing.note("changed", 4.0, -SURE)
    assert standing.is_suspect("other") is is_news

    standing.note("other", 4.0, SURE)
    assert not standing.is_suspect("other")
    assert standing.is_suspect("third") is is_news
    for _ in range(500):
        standing.note("fourth", 4.0, SURE)
    assert not standing.is_suspect("third")


def test_verified_suspects_an_answer_once_it_was_found_wrong_and_remembers_over_a_restart() -> None:
    """Others go on being served meanwhile."""
    decider = Verified(Bound(0.05), Random(1))
    drive(decider, steep, 1500, Random(2), num_answers=200)
    wrong, other = (decider.propose("how can I pay", [candidate(0.99, answer=name)]) for name in ("old", "other"))
    assert wrong is not None
    assert decider.decide(wrong).reason == "served"
    decider.label(wrong, rightness=0.0, weight=1.0, served_at=None, is_explained=False)
    restarted = Verified(Bound(0.05), Random(1))
    restarted.load(decider.dump())

    for one in (decider, restarted):
        assert one.decide(wrong).reason == "suspect"
        assert one.decide(other).reason == "served"
        one.label(wrong, rightness=0.0, weight=1.0, served_at=None, is_explained=False)
        assert one.gives_up("old")

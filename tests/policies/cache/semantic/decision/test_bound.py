"""From labels and look-ups to the score from which answers may be served."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.decision.bound import Labelled, ServedHistory, above_all, lowest_score, spending
from policies.cache.semantic.decision.logistic import evidence_of, wrong_probability


def labelled(scores: list[float], is_wrong: list[bool]) -> Labelled:
    """Sure labels."""
    return Labelled(np.array(scores), evidence_of(1.0 - np.array(is_wrong, float)))


@given(
    st.lists(st.tuples(st.floats(-5, 8), st.booleans()), min_size=1, max_size=60),
    st.lists(st.floats(-5, 8), min_size=1, max_size=60),
    st.floats(0.0001, 0.1),
    st.booleans(),
)
def test_lowest_score_of_a_smaller_allowance_is_no_lower(
    labels: list[tuple[float, bool]], asked: list[float], allowed: float, of_served: bool
) -> None:
    """And of nothing it is above every label."""
    of_labels = labelled([score for score, _ in labels], [is_wrong for _, is_wrong in labels])
    wide = lowest_score(of_labels, np.array(asked), allowed=allowed, of_served=of_served)
    narrow = lowest_score(of_labels, np.array(asked), allowed=allowed / 3, of_served=of_served)

    assert narrow >= wide
    assert wide <= above_all(of_labels)


def test_lowest_score_rises_where_labels_contradict_the_model() -> None:
    """The same scores; in one case nothing that was labelled is wrong, in the other one in ten."""
    scores = np.linspace(0.0, 8.0, 400).tolist()
    believed = labelled(scores, [False] * 400)
    contradicted = labelled(scores, [place % 10 == 0 for place in range(400)])

    trusting = lowest_score(believed, np.array(scores), allowed=0.01, of_served=False)
    careful = lowest_score(contradicted, np.array(scores), allowed=0.01, of_served=False)
    assert careful > trusting + 0.5


def test_lowest_score_keeps_the_expected_share_under_what_is_allowed() -> None:
    """With labels just as the model expects them, what it expects above the score is allowed, with a margin."""
    generator = np.random.default_rng(5)
    scores = generator.uniform(-2.0, 8.0, 3000)
    is_wrong = generator.random(3000) < wrong_probability(scores)
    found = lowest_score(labelled(scores.tolist(), is_wrong.tolist()), scores, allowed=0.01, of_served=False)

    expected = wrong_probability(scores[scores >= found]).sum() / 3000
    assert 0.005 < expected < 0.01


def served(scores: list[float], checked: Labelled) -> ServedHistory:
    """So many answers, and the checks of some."""
    return ServedHistory(np.array(scores), checked.scores, checked.evidence)


def test_spending_is_what_was_expected_times_how_checks_turned_out() -> None:
    """Without a check the model is believed; of nothing served nothing is spent."""
    as_expected = 1000 * float(wrong_probability(np.array([4.0]))[0])

    unchecked = spending(served([4.0] * 1000, labelled([], [])))
    bad = spending(served([4.0] * 1000, labelled([4.0] * 50, [True] * 20 + [False] * 30)))
    nothing = spending(served([], labelled([], [])))

    assert unchecked.mean == pytest.approx(as_expected, rel=1e-3)
    assert unchecked.upper > unchecked.mean
    assert bad.mean > 4 * as_expected
    assert (nothing.mean, nothing.upper) == (0.0, 0.0)


def test_spending_of_checks_that_cannot_tell_is_what_was_believed_before() -> None:
    """At even odds a comparison says nothing, neither that the model is right nor that it is not."""
    before = spending(served([4.0] * 1000, labelled([], [])))
    doubtful = spending(served([4.0] * 1000, Labelled(np.full(500, 4.0), np.zeros(500))))

    assert doubtful.mean == pytest.approx(before.mean)
    assert doubtful.upper == pytest.approx(before.upper)


@pytest.mark.parametrize("rate", [0.005, 0.05])
def test_spending_by_doubtful_comparisons_is_right_and_less_sure(rate: float) -> None:
    """Of same answers one in five looks doubtful, of others one in a hundred good: the truth is found, less sharply."""
    generator = np.random.default_rng(1)
    is_wrong = generator.random(2000) < rate
    # Log odds of two normal distributions so far apart are calibrated at even odds.
    distance = 3.1
    told = generator.normal(np.where(is_wrong, -1.0, 1.0) * distance**2 / 2, distance)
    scores = [4.0] * 2000
    doubtful = spending(served(scores, Labelled(np.array(scores), told)))
    sure = spending(served(scores, labelled(scores, is_wrong.tolist())))

    assert doubtful.mean == pytest.approx(is_wrong.sum(), rel=0.25, abs=6)
    assert doubtful.upper / doubtful.mean > sure.upper / sure.mean

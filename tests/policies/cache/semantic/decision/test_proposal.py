"""What is no candidate, however near its vector."""

from __future__ import annotations

import pytest

from policies.cache.semantic.contracts import KnownNeighbour
from policies.cache.semantic.decision.features import FEATURES
from policies.cache.semantic.decision.proposal import propose
from tests.support.policy.semantic_traffic import candidate


@pytest.mark.parametrize(
    ("asked", "stored", "cosine", "is_candidate"),
    [
        ("\u51e0\u70b9\u5f00\u95e8", "\u600e\u4e48\u4ed8\u6b3e", 1.0, False),
        ("\u51e0\u70b9\u5f00\u95e8\uff1f", "\u51e0\u70b9\u5f00\u95e8", 1.0, True),
        ("How do I pay?", "how do i pay", 1.0, True),
        ("how do I pay", "how can I pay", 0.9995, False),
        ("how do I pay", "how can I pay", 0.998, True),
        ("What does \U0001f642 mean?", "What does \U0001f643 mean?", 1.0, False),
        ("What does \U0001f642 mean?", "what does \U0001f642 mean", 1.0, True),
        ("What does `ls -l` do?", "What does `ls -L` do?", 1.0, False),
        ("How many g are 5 mg?", "How many g are 5 Mg?", 1.0, False),
        ("How many g are 5 mg?", "HOW MANY G ARE 5 MG?", 1.0, True),
        ("Is it free?  It is, I hope", "is it free? it is, i hope", 1.0, True),
        ("for i in a:\n    f(i)\n    g(i)", "for i in a:\n    f(i)\ng(i)", 1.0, False),
        ("Is it free?\nWho says so?", "Is it free? Who says so?", 1.0, True),
    ],
)
def test_equal_vectors_of_other_words_are_no_neighbours(
    asked: str, stored: str, cosine: float, is_candidate: bool
) -> None:
    """An encoder without a script's letters, or a sign, gives all of its texts one vector, and would have them all one
    answer; many know neither capitals nor how far a line is indented.
    """
    assert (propose(asked, [candidate(cosine, text=stored)]) is not None) is is_candidate


def test_neighbours_that_were_read_are_proposed_beside_those_that_were_not() -> None:
    """The blind one is left out, not the look-up."""
    found = propose("how do I pay", [candidate(1.0, text="how can I go", id="blind"), candidate(0.9, id="read")])

    assert found is not None
    assert found.candidate.id == "read"


def test_small_opposition_is_told_from_none_and_from_less() -> None:
    """Between a tenth and a hundredth of the vote against an answer lies as much as between one and a tenth."""

    def unopposed(*others: KnownNeighbour) -> float:
        found = propose("how do I pay", [candidate(0.9), *others])
        assert found is not None
        return found.features[FEATURES.index("unopposed")]

    alone = unopposed()
    hardly, little, much = (unopposed(candidate(cosine, answer="b", id="2")) for cosine in (0.55, 0.7, 0.85))

    assert alone > hardly > little > much > 0.0
    assert hardly - little > 1.0


def test_the_very_text_is_proposed_against_many_that_are_near() -> None:
    """Questions of one frame lie nearer to each other than others' wordings, and speak for answers of their own."""
    own = candidate(1.0, text="convert 5 km to miles", id="own", answer="5")
    others = [candidate(0.99, text=f"convert {n} km to miles", id=str(n), answer="other") for n in range(6, 12)]

    found = propose("convert 5 km to miles", [*others, own])

    assert found is not None
    assert found.candidate.id == "own"
    assert found.features[FEATURES.index("share")] == 1.0

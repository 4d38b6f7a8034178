"""When labels that nobody expected say that a backend has changed, and when they are what is usual."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from policies.cache.semantic.decision.standing import Standing
from policies.cache.semantic.decision.surprise import SurpriseState

SURE = 9.0


def alarms(share: float, labels: int, random: Random, state: SurpriseState) -> int:
    """How often so many labels, of which such a share surprise, say that the backend has changed."""
    return sum(state.note(is_surprise=random.random() < share) for _ in range(labels))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.4, 0.9])
def test_surprise_what_is_usual_seldom_is_news(share: float) -> None:
    """However much that is: after a while at most once in 750 labels."""
    random, state = Random(1), SurpriseState()
    alarms(share, 1000, random, state)

    assert alarms(share, 30_000, random, state) <= 40


@pytest.mark.parametrize("usual", [0.0, 0.01, 0.02])
def test_surprise_a_tenth_more_is_news_soon(usual: float) -> None:
    """Within fifty labels in the mean."""
    delays = []
    for seed in range(50):
        random, state = Random(seed), SurpriseState()
        alarms(usual, 1000, random, state)
        state.told = 0.0
        delays.append(next(at for at in range(2000) if state.note(is_surprise=random.random() < usual + 0.12)))

    assert sum(delays) / len(delays) < 50


def test_surprise_every_label_from_the_first_on_is_no_error() -> None:
    """Nor is what was never seen before: a label as expected."""
    state = SurpriseState()
    assert alarms(1.0, 20_000, Random(1), state) <= 20
    assert alarms(1.0, 20_000, Random(1), state) == 0
    assert alarms(0.0, 10_000, Random(1), state) == 0


def test_surprise_is_remembered_over_a_restart() -> None:
    """With all else that a decision knows."""
    state = SurpriseState()
    alarms(0.0, 500, Random(1), state)
    state.note(is_surprise=True)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=SurpriseState) == state
    assert state.told > 0.0


@pytest.mark.parametrize(
    ("labels_for", "is_explained", "score", "is_news"),
    [(20, False, 2.0, True), (7, False, 2.0, False), (20, True, 2.0, False), (20, False, -0.5, False)],
)
def test_standing_a_label_against_each_of_several_trusted_answers_is_news(
    labels_for: int, is_explained: bool, score: float, is_news: bool
) -> None:
    """None of which is ended by it; unless it is explained, or the answer was not thought right anyway."""
    standing = Standing()
    answers = [f"answer {number}" for number in range(100)]
    for _ in range(labels_for):
        for answer in answers:
            standing.note(answer, 4.0, SURE)
    assert not standing.is_suspect("answer 50")

    for answer in answers[:4]:
        standing.note(answer, score, -SURE, is_explained=is_explained)
    assert not any(standing.is_gone(answer) for answer in answers)
    assert standing.is_suspect("answer 50") is is_news

    standing.note("answer 50", 4.0, SURE)
    assert not standing.is_suspect("answer 50")

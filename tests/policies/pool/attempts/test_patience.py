"""How long a silent backend is waited for while somebody else could be asked."""

from __future__ import annotations

from random import Random

import pytest

from policies.pool.attempts.patience import CEILING_S, FLOOR_S, Patience


def test_patience_grows_with_the_prompt_up_to_its_ceiling() -> None:
    """A second for each 4 KiB of the body."""
    patience = Patience()

    assert patience.limit_s(0) == FLOOR_S
    assert patience.limit_s(40_960) == FLOOR_S + 10
    assert patience.limit_s(10**9) == CEILING_S


@pytest.mark.parametrize("thinks_s", [12.0, 40.0])
def test_patience_model_that_thinks_is_given_up_a_few_times_and_no_more(thinks_s: float) -> None:
    """Every call takes as long: four at most go on before it is waited for, then one in twenty."""
    patience = Patience()
    given_up = []
    for number in range(400):
        now = number * 100.0
        limit_s = patience.limit_s(100)
        if thinks_s > limit_s:
            given_up.append(number)
            assert patience.was_late(now, now + limit_s)
        else:
            patience.was_in_time()

    assert len([number for number in given_up if number < 10]) <= 4
    assert len(given_up) <= 4 + 400 / 20


def test_patience_one_slow_call_in_five_is_hardly_given_up() -> None:
    """Where some calls think and others do not, about one in twenty is given up, as is stated."""
    patience, random = Patience(), Random(1)
    given_up = 0
    for number in range(4000):
        first_s = 35.0 if random.random() < 0.2 else 0.5
        limit_s = patience.limit_s(0)
        if first_s > limit_s:
            given_up += 1
            patience.was_late(number * 100.0, number * 100.0 + limit_s)
        else:
            patience.was_in_time()

    assert given_up <= 4000 * 0.06


@pytest.mark.parametrize("num_bytes", [0, 100, 120 * 1024])
def test_patience_calls_given_up_together_teach_once(num_bytes: int) -> None:
    """A hundred that were in flight together say no more than one, however long their prompts."""
    patience = Patience()
    limit_s = patience.limit_s(num_bytes)
    counted = [patience.was_late(number * 0.01, number * 0.01 + limit_s) for number in range(100)]

    assert counted == [True] + [False] * 99
    assert patience.limit_s(0) == 1.5 * FLOOR_S


def test_patience_every_call_after_the_last_late_one_counts() -> None:
    """Also at the ceiling: whoever is silent for good is taken out."""
    patience = Patience()

    assert all(patience.was_late(number * CEILING_S, (number + 1) * CEILING_S) for number in range(20))
    assert patience.limit_s(10**9) == CEILING_S


def test_patience_comes_back_to_the_floor() -> None:
    """Answers in time undo what was learned."""
    patience = Patience()
    patience.was_late(0.0, FLOOR_S)
    for _ in range(20):
        patience.was_in_time()

    assert patience.limit_s(0) == FLOOR_S

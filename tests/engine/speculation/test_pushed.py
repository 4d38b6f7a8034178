"""What is kept of pushed guesses, whatever they are and whenever they come."""

from __future__ import annotations

import random

import pytest

from backends.engine.speculation.pushed import PushedTokens

TEXT = [5, 6, 7]


def test_a_guess_that_agrees_with_the_text_is_kept_behind_it() -> None:
    """It may begin within what is known already."""
    pushed = PushedTokens(8)

    pushed.push(TEXT, 1, [6, 7, 8, 9])

    assert pushed.behind(TEXT) == [8, 9]
    assert pushed.behind([*TEXT, 8]) == [9]
    assert pushed.behind([*TEXT, 8, 9]) == []
    assert pushed.num_dropped == 0


@pytest.mark.parametrize(
    ("start", "guess"),
    [(1, [6, 0, 8]), (4, [8, 9]), (2**30, [1]), (0, [5, 6]), (0, [])],
    ids=["other text", "a gap", "far away", "late", "nothing"],
)
def test_a_guess_that_does_not_fit_is_dropped_and_counted(start: int, guess: list[int]) -> None:
    """It is no error, and what is kept stays."""
    pushed = PushedTokens(8)
    pushed.push(TEXT, 3, [8, 9])

    pushed.push(TEXT, start, guess)

    assert pushed.behind(TEXT) == [8, 9]
    assert pushed.num_dropped == len(guess)


def test_a_guess_that_the_text_has_left_is_dropped_for_the_next() -> None:
    """Until then nothing is proposed."""
    pushed = PushedTokens(8)
    pushed.push(TEXT, 3, [8, 9, 10])

    assert pushed.behind([*TEXT, 1]) == []
    pushed.push([*TEXT, 1], 3, [1, 2])

    assert pushed.behind([*TEXT, 1]) == [2]
    assert pushed.num_dropped == 2


def test_a_guess_that_was_overtaken_takes_nothing_away() -> None:
    """Posts come in any order; the longer guess is the later one."""
    pushed = PushedTokens(8)

    pushed.push(TEXT, 3, [8, 9, 10])
    pushed.push(TEXT, 3, [8])

    assert pushed.behind(TEXT) == [8, 9, 10]


def test_a_guess_that_is_too_long_is_kept_as_far_as_there_is_room() -> None:
    """The rest is counted as dropped."""
    pushed = PushedTokens(4)

    pushed.push(TEXT, 3, list(range(10)))

    assert pushed.behind(TEXT) == [0, 1, 2, 3]
    assert pushed.num_dropped == 6


def test_whatever_comes_in_whatever_order_only_guesses_that_agree_are_proposed() -> None:
    """A text that grows by random tokens of two, and posts that are right, wrong, late or early by chance."""
    rng = random.Random(5)
    whole = [rng.randrange(2) for _ in range(400)]
    pushed, posted = PushedTokens(6), []
    known = 1
    while known < 390:
        start = rng.randrange(max(0, known - 3), known + 3)
        guess = [token ^ (rng.random() < 0.2) for token in whole[start : start + rng.randrange(8)]]
        posted.append((start, guess))
        pushed.push(whole[:known], *rng.choice(posted[-4:]))
        behind = pushed.behind(whole[:known])
        assert len(behind) <= 6
        assert not behind or any(
            first <= known
            and tokens[: known - first] == whole[first:known]
            and tokens[known - first :][: len(behind)] == behind
            for first, tokens in posted
        )
        known += rng.randrange(3)

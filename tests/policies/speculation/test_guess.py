"""What is known of an answer and what its draft believes: whichever of both is ahead."""

from __future__ import annotations

import random

from policies.speculation.guess import Guess


def test_a_draft_that_is_right_is_posted_once_and_comes_true() -> None:
    """What was posted stays posted while the answer comes on."""
    guess = Guess()
    guess.learn([1])
    told = guess.begin()
    guess.say([2, 3])
    first = guess.news()
    again = guess.news()
    guess.learn([2])
    guess.say([4])
    second = guess.news()
    guess.learn([3, 4, 5])

    assert (told, first, again, second) == ([1], (1, [2, 3]), None, (2, [3, 4]))
    assert (guess.num_drafted, guess.num_accepted) == (3, 3)
    assert not guess.is_wrong
    assert guess.lag == 1


def test_a_draft_that_is_wrong_begins_anew_behind_what_is_known() -> None:
    """Nothing that it says meanwhile is posted."""
    guess = Guess()
    guess.learn([1])
    guess.begin()
    guess.say([2, 3, 4])
    guess.news()
    guess.learn([2, 9])
    guess.say([5])
    while_wrong = (guess.is_wrong, guess.ahead, guess.news())
    told = guess.begin()
    guess.say([7])

    assert while_wrong == (True, [], None)
    assert told == [1, 2, 9]
    assert guess.news() == (3, [7])
    assert (guess.num_drafted, guess.num_accepted) == (4, 1)


def test_a_draft_that_lags_says_nothing_new_until_it_is_ahead() -> None:
    """And is wrong if it says something else than what is known already."""
    guess = Guess()
    guess.begin()
    guess.learn([1, 2, 3])
    guess.say([1, 2])
    late = (guess.lag, guess.ahead, guess.news(), guess.is_wrong)
    guess.say([8])

    assert late == (1, [], None, False)
    assert guess.is_wrong
    assert guess.num_drafted == 0


def test_a_draft_that_goes_on_is_asked_behind_its_own_tokens() -> None:
    """Its next request continues the one before."""
    guess = Guess()
    guess.learn([1])
    guess.begin()
    guess.say([2, 3])
    guess.news()

    told = guess.begin()
    guess.say([4])

    assert told == [1, 2, 3]
    assert guess.news() == (1, [2, 3, 4])
    assert guess.num_drafted == 3


def test_whatever_order_things_come_in_posts_agree_with_what_is_known() -> None:
    """A random answer, a draft that is wrong now and then, asked anew now and then."""
    rng = random.Random(4)
    whole = [rng.randrange(3) for _ in range(3000)]
    guess, posted, drafted = Guess(), 0, 0
    guess.begin()
    while len(guess.known) < 2900:
        move = rng.randrange(4)
        if move == 0:
            guess.learn(whole[len(guess.known) :][: rng.randrange(4)])
        elif move == 1:
            at = len(guess.known) + len(guess.ahead) - guess.lag
            guess.say([token ^ (rng.random() < 0.1) for token in whole[at : at + rng.randrange(3)]])
        elif move == 2:
            if guess.is_wrong or guess.lag:
                assert guess.begin() == guess.known
        elif (news := guess.news()) is not None:
            at, tokens = news
            assert at == len(guess.known)
            assert tokens == guess.ahead
            posted += 1
        drafted = max(drafted, guess.num_drafted)

    assert posted > 100
    assert 0 < guess.num_accepted <= guess.num_drafted
    assert guess.known == whole[: len(guess.known)]

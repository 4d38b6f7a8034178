"""What it means that two answers differ at all: much where each thing has one wording, else nothing."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.learning.comparators import AnswerVerdict, Comparison, verdict_of
from policies.cache.semantic.learning.rewording import Rewording
from policies.cache.semantic.sameness.forms import SURE

DOUBT = -1.5


class Doubtful:
    """A reader that finds all answers rather different, and cannot say."""

    async def compare(self, left: str, right: str) -> float | None:
        """The same of all."""
        return DOUBT


def test_answers_of_an_upstream_with_one_wording_are_different_where_they_differ() -> None:
    """A pair that the reader is in doubt about is told apart once equal ones have come."""

    async def main() -> None:
        comparison = Comparison(Doubtful(), None, Rewording())

        async def verdict(left: str, right: str) -> AnswerVerdict:
            return verdict_of(await comparison.compare("where is it", left, right, may_ask=False))

        assert await verdict("in box 7", "in bag 7") is AnswerVerdict.UNKNOWN
        for _ in range(100):
            assert await verdict("in box 7", "in box 7") is AnswerVerdict.SAME
        assert await verdict("in box 7", "in bag 7") is AnswerVerdict.DIFFERENT

    asyncio.run(main())


def test_answers_that_are_worded_anew_are_weighed_as_they_were_read() -> None:
    """Equal pairs among them change hardly anything; and a new model's wordings are known within some hundred pairs."""
    rewording = Rewording()
    for number in range(200):
        rewording.weighed(SURE if number % 10 == 0 else 3.0)
    assert 2.8 < rewording.weighed(3.0) <= 3.0

    for _ in range(500):
        rewording.weighed(SURE)
    assert rewording.weighed(1.0) < -1.5
    for _ in range(150):
        rewording.weighed(3.0)
    assert rewording.weighed(3.0) > 2.0


@given(st.lists(st.floats(-20, 20), max_size=300), st.floats(-20, 15.9))
def test_whatever_was_compared_a_pair_that_differs_is_never_likelier_the_same_and_equal_ones_stay_sure(
    before: list[float], log_odds: float
) -> None:
    """What is learned only takes away, and is a number."""
    rewording = Rewording()
    for each in before:
        rewording.weighed(each)

    assert 0 < rewording.share <= 1
    assert -30 < rewording.weighed(log_odds) <= log_odds
    assert rewording.weighed(SURE) == SURE

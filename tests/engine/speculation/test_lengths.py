"""How many tokens are proposed for each sequence of a step."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.speculation.lengths import Chance, Lengths, best_lengths, expected_tokens
from backends.engine.speculation.step_time import StepTimeFit, TargetTimeFit

NO_DRAFT = StepTimeFit()


def target(fixed: float, sequence: float, proposal: float) -> TargetTimeFit:
    """A target's time that was measured often, without noise."""
    time = TargetTimeFit()
    for _ in range(50):
        for num_sequences, num_proposals in itertools.product((1, 4, 16), (0, 3, 9)):
            time.add(num_sequences, num_proposals, fixed + sequence * num_sequences + proposal * num_proposals)
    return time


def draft(fixed: float, each: float) -> StepTimeFit:
    """A draft model's time a step."""
    time = StepTimeFit()
    for _ in range(50):
        for count in (1, 2, 4, 8):
            time.add(count, fixed + each * count)
    return time


def ready(rate: float, number: int = 6) -> Chance:
    """Tokens at hand."""
    return Chance(num_ready=number, ready_rate=rate)


def drafted(rate: float, number: int = 6) -> Chance:
    """Tokens that the draft model would have to make."""
    return Chance(num_draft=number, draft_rate=rate)


def test_nothing_known_of_the_targets_time_proposes_all_of_the_likelier_kind() -> None:
    """What is at hand where the draft model is no better."""
    chances = [ready(0.5), drafted(0.5, 3), Chance(2, 0.6, 4, 0.5), Chance(2, 0.5, 4, 0.6)]

    found = best_lengths(chances, num_sequences=4, target=TargetTimeFit(), draft=NO_DRAFT)

    assert (found.ready, found.drafts) == ([6, 0, 2, 0], [0, 3, 0, 4])


def test_free_sure_tokens_are_all_proposed_and_hopeless_ones_never() -> None:
    """A step that takes the same with any number of rows should carry all that may come true."""
    flat, steep = target(1.0, 0.1, 0.0), target(1.0, 0.1, 0.1)

    assert best_lengths([ready(0.99)], num_sequences=1, target=flat, draft=NO_DRAFT).ready == [6]
    assert best_lengths([ready(0.0), drafted(0.0)], num_sequences=2, target=steep, draft=NO_DRAFT) == Lengths(
        [0, 0], [0, 0], [0.0, 0.0]
    )


def test_sequences_of_one_step_get_lengths_of_their_own() -> None:
    """Whose tokens come true more often gets more of the rows."""
    found = best_lengths(
        [ready(rate) for rate in (0.3, 0.6, 0.9)], num_sequences=8, target=target(1.0, 0.1, 0.1), draft=NO_DRAFT
    ).ready

    assert found == sorted(found)
    assert found[0] == 0 < found[1] < found[2]


def test_draft_model_as_slow_as_the_target_is_not_asked() -> None:
    """It never pays."""
    found = best_lengths([drafted(0.8)], num_sequences=1, target=target(1.0, 0.1, 0.0), draft=draft(1.0, 0.1))

    assert not found.has_drafts


def test_draft_model_runs_for_many_but_not_for_one_of_many() -> None:
    """Its steps take hardly longer for eight than for one, and all eight wait for them."""
    time, small = target(2.0, 0.1, 0.02), draft(0.5, 0.01)
    alone = [drafted(0.8)] + [Chance()] * 7

    together = best_lengths([drafted(0.8)] * 8, num_sequences=8, target=time, draft=small)

    assert together.drafts[0] > 1
    assert not best_lengths(alone, num_sequences=8, target=time, draft=small).has_drafts


def test_who_has_likely_tokens_at_hand_keeps_them_while_others_are_drafted_for() -> None:
    """And who has unlikely ones is drafted for with the others."""
    likely, unlikely = Chance(6, 0.9, 6, 0.8), Chance(6, 0.3, 6, 0.8)

    found = best_lengths(
        [likely, *[unlikely] * 7], num_sequences=8, target=target(2.0, 0.1, 0.01), draft=draft(0.2, 0.005)
    )

    assert found.ready[0] > 1
    assert found.ready[1:] == [0] * 7
    assert found.drafts[0] == 0
    assert min(found.drafts[1:]) > 1


def test_length_grows_with_acceptance_and_shrinks_where_proposals_are_dear() -> None:
    """Down to none."""
    small = draft(0.2, 0.0)
    by_rate = [
        best_lengths([drafted(rate, 8)], num_sequences=1, target=target(2.0, 0.1, 0.1), draft=small).drafts[0]
        for rate in (0.1, 0.5, 0.7, 0.9, 0.98)
    ]
    by_price = [
        best_lengths([drafted(0.7, 8)], num_sequences=1, target=target(2.0, 0.1, price), draft=small).drafts[0]
        for price in (0.0, 0.2, 0.5, 1.0, 3.0)
    ]

    assert by_rate == sorted(by_rate)
    assert by_rate[0] < by_rate[-1]
    assert by_price == sorted(by_price, reverse=True)
    assert by_price[-1] == 0


def test_length_is_the_best_of_a_simulation() -> None:
    """The formula agrees with drawing acceptances: the chosen length makes the most tokens a second."""
    rng = random.Random(3)
    rate = 0.75

    def tokens_per_s(length: int) -> float:
        tokens = 0
        for _ in range(20_000):
            accepted = 0
            while accepted < length and rng.random() < rate:
                accepted += 1
            tokens += accepted + 1
        return tokens / 20_000 / (2.1 + 0.1 * length + 0.3 * length)

    simulated = {length: tokens_per_s(length) for length in range(7)}
    chosen = best_lengths([drafted(rate)], num_sequences=1, target=target(2.0, 0.1, 0.1), draft=draft(0.3, 0.0))
    assert simulated[chosen.drafts[0]] == pytest.approx(max(simulated.values()), rel=0.02)


@given(
    st.lists(st.builds(ready, st.floats(0.05, 0.95), st.integers(0, 3)), min_size=1, max_size=4),
    st.floats(0.01, 0.5),
)
def test_lengths_of_tokens_at_hand_are_the_best_of_all(chances: list[Chance], price: float) -> None:
    """As trying every combination finds."""
    time = target(1.0, 0.1, price)

    def rate(lengths: tuple[int, ...]) -> float:
        tokens = sum(expected_tokens(one.ready_rate, number) for one, number in zip(chances, lengths, strict=True))
        # What guesses take counts a tenth more: those that look best are mostly not as good.
        return (len(chances) + tokens) / (time.predict(len(chances), 0) + 1.1 * time.proposal_s * sum(lengths))

    found = best_lengths(chances, num_sequences=len(chances), target=time, draft=NO_DRAFT).ready

    best = max(map(rate, itertools.product(*(range(one.num_ready + 1) for one in chances))))
    assert rate(tuple(found)) == pytest.approx(best, rel=1e-6)


def test_least_certainty_grows_with_the_time_of_a_draft() -> None:
    """A further draft has to save more time than it takes."""
    time = target(2.0, 0.1, 0.02)
    least = [
        best_lengths([drafted(0.9)], num_sequences=1, target=time, draft=draft(seconds, 0.0)).least[0]
        for seconds in (0.1, 0.2, 0.4)
    ]

    assert least == sorted(least)
    assert 0 < least[0] < least[-1] < 1

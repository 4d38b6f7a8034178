"""The adaptive draft length: what it learns, and what it chooses."""

from __future__ import annotations

import random

import pytest

from backends.engine.speculation.adaptive import Acceptance, Purse, StepTimeFit, best_draft


def line(fixed: float, each: float, rows: tuple[int, ...] = (1, 2, 4, 8)) -> StepTimeFit:
    """A step time that was measured often, without noise."""
    time = StepTimeFit()
    for _ in range(50):
        for count in rows:
            time.add(count, fixed + each * count)
    return time


def test_step_time_of_a_noisy_line_predicts_between_and_beyond_what_was_measured() -> None:
    """The fit follows the line within the noise."""
    rng = random.Random(1)
    time = StepTimeFit()
    for _ in range(500):
        rows = rng.randint(1, 8)
        time.add(rows, (2.0 + 0.5 * rows) * rng.uniform(0.9, 1.1))

    assert [time.predict(rows) for rows in (1, 4, 16)] == pytest.approx([2.5, 4.0, 10.0], rel=0.1)


def test_step_time_measured_at_one_size_is_taken_to_be_flat() -> None:
    """Nothing is known of other sizes, so they are worth a try."""
    time = line(1.0, 0.0, rows=(1,))

    assert time.predict(8) == pytest.approx(1.0)


def test_step_time_after_an_outlier_has_hardly_moved() -> None:
    """One step that took a hundred times as long, while the machine did something else."""
    time = line(1.0, 0.1)
    before = time.predict(4)

    time.add(4, 100 * before)

    assert time.predict(4) == pytest.approx(before, rel=0.1)


def test_step_time_of_a_machine_that_slows_down_follows() -> None:
    """Old measurements fade."""
    time = line(1.0, 0.1)

    for _ in range(300):
        time.add(1, 2.2)

    assert time.predict(1) == pytest.approx(2.2, rel=0.05)


@pytest.mark.parametrize("truth", [0.2, 0.6, 0.95])
def test_acceptance_of_simulated_drafts_finds_the_rate(truth: float) -> None:
    """Drafts behind the first rejected one do not count, or the rate would come out too low."""
    rng = random.Random(2)
    acceptance = Acceptance(0.5, 0.005)
    for _ in range(3000):
        num_accepted = 0
        while num_accepted < 4 and rng.random() < truth:
            num_accepted += 1
        acceptance.add(4, num_accepted)

    assert acceptance.rate == pytest.approx(truth, abs=0.07)


def test_best_draft_of_free_sure_drafts_is_the_most() -> None:
    """A step that costs the same with any number of rows should carry all that it can."""
    assert best_draft(0.99, 6, num_sequences=1, target=line(1.0, 0.0)).num_draft == 6


def test_best_draft_where_nothing_is_accepted_is_none() -> None:
    """Rows that cost and bring nothing."""
    assert best_draft(0.0, 6, num_sequences=1, target=line(1.0, 0.1)).num_draft == 0


def test_best_draft_of_a_slow_draft_model_is_none() -> None:
    """A draft step as long as the target's own never pays."""
    target = line(1.0, 0.1)

    assert best_draft(0.8, 6, num_sequences=1, target=target, draft=line(1.0, 0.1)).num_draft == 0


def test_best_draft_grows_with_acceptance_and_shrinks_with_the_batch() -> None:
    """Longer drafts for those whose drafts are accepted, shorter ones where rows are many."""
    target, draft = line(2.0, 0.1), line(0.2, 0.0)

    by_rate = [
        best_draft(rate, 8, num_sequences=1, target=target, draft=draft).num_draft
        for rate in (0.1, 0.5, 0.7, 0.9, 0.98)
    ]
    by_batch = [
        best_draft(0.7, 8, num_sequences=count, target=target, draft=draft).num_draft for count in (1, 8, 32, 256)
    ]
    assert by_rate == sorted(by_rate)
    assert by_rate[0] < by_rate[-1]
    assert by_batch == sorted(by_batch, reverse=True)
    assert by_batch[-1] == 0


def test_best_draft_is_the_best_of_a_simulation() -> None:
    """The formula agrees with drawing acceptances: the chosen length makes the most tokens a second."""
    rng = random.Random(3)
    target, draft, rate = line(2.0, 0.1), line(0.3, 0.0), 0.75

    def tokens_per_s(length: int) -> float:
        tokens = 0
        for _ in range(20_000):
            accepted = 0
            while accepted < length and rng.random() < rate:
                accepted += 1
            tokens += accepted + 1
        return tokens / 20_000 / (2.1 + 0.1 * length + 0.3 * length)

    simulated = {length: tokens_per_s(length) for length in range(7)}
    chosen = best_draft(rate, 6, num_sequences=1, target=target, draft=draft)
    assert simulated[chosen.num_draft] == pytest.approx(max(simulated.values()), rel=0.02)
    assert chosen.tokens_per_s == pytest.approx(simulated[chosen.num_draft], rel=0.05)


def test_least_certainty_of_free_drafts_is_none_and_grows_with_their_time() -> None:
    """A further draft has to save more time than it takes."""
    times = [None, line(0.1, 0.0), line(0.2, 0.0), line(0.4, 0.0)]
    free = best_draft(0.9, 6, num_sequences=1, target=line(2.0, 0.0))

    least = [best_draft(0.9, 6, num_sequences=1, target=line(2.0, 0.05), draft=time).least for time in times]

    assert free.least == 0
    assert least == sorted(least)
    assert 0 < least[0] < least[-1] < 1


def replay(parts: list[tuple[int, float]], rng: random.Random) -> tuple[float, float]:
    """Seconds of steps, and of the same tokens alone, where a step with proposals is worth `gain` times what it takes.

    `parts`: numbers of tokens, in steps alone of a hundredth of a second, and that gain.
    """
    purse, took, alone, step = Purse(), 0.0, 0.0, 0.01
    for tokens, gain in parts:
        left = float(tokens)
        while left > 0:
            if not purse.is_open:
                purse.earn(step)
                purse.settle(0.0, 0.0, step)
                took, alone, left = took + step, alone + step, left - 1
                continue
            made = rng.choice((1, 2, 4))
            spent = made * step / gain * rng.uniform(0.8, 1.2)
            purse.settle(made * step, spent, step)
            took, alone, left = took + spent, alone + made * step, left - made
    return took, alone


@pytest.mark.parametrize("gain", [0.3, 0.6, 0.8, 0.95, 0.99])
def test_purse_where_speculation_loses_costs_its_share_and_one_try(gain: float) -> None:
    """Over a long run one per cent; over a short one the few steps besides that a try may lose."""
    for seed in range(20):
        for tokens in (200, 1000, 20_000):
            took, alone = replay([(tokens, gain)], random.Random(seed))

            assert took - alone <= 0.01 * alone + (4 + 5 / gain) * 0.01, (seed, tokens)


@pytest.mark.parametrize("gain", [1.2, 1.5, 3.0])
def test_purse_where_speculation_gains_stays_open(gain: float) -> None:
    """However steps scatter."""
    for seed in range(20):
        took, alone = replay([(20_000, gain)], random.Random(seed))

        assert alone / took >= 0.95 * gain, seed


def test_purse_over_times_that_change_loses_what_a_change_may_and_finds_the_good_ones_again() -> None:
    """Good and bad by turns, some thousand tokens each: no run takes longer than alone by more than two per cent."""
    for seed in range(20):
        rng = random.Random(seed)
        parts = [(rng.randint(300, 4000), rng.choice((0.3, 0.8, 0.95, 1.5, 2.5))) for _ in range(40)]
        took, alone = replay(parts, rng)
        best = sum(tokens / max(1.0, gain) for tokens, gain in parts) * 0.01

        assert took <= 1.02 * alone
        assert took <= 1.12 * best

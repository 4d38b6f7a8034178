"""What steps take, learned from measurements with noise."""

from __future__ import annotations

import random

import pytest

from backends.engine.speculation.step_time import StepTimeFit, TargetTimeFit


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


@pytest.mark.parametrize("rows_share", [0.0, 0.5])
def test_step_time_that_was_measured_at_full_batches_alone_says_something_possible_of_small_ones(
    rows_share: float,
) -> None:
    """Whatever noise there was: fewer rows never take more, nor less than their part of the step."""
    for seed in range(50):
        rng = random.Random(seed)
        time = StepTimeFit(0.1, rows_share)
        for _ in range(30):
            time.add(rng.choice((30, 31, 32)), 20.0 * rng.uniform(0.7, 1.4))

        full = time.predict(32)
        assert full * 5 / 32 <= time.predict(5) <= 1.2 * full, seed
        assert abs(time.predict(16) - full * (1 - rows_share / 2)) <= 0.25 * full, seed


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


def plane_seconds(num_sequences: int, num_proposals: int) -> float:
    """What a sequence takes is five times what a proposal does."""
    return 2.0 + 0.5 * num_sequences + 0.1 * num_proposals


def test_target_time_tells_sequences_from_proposals() -> None:
    """Though both go up and down together: more answers, more guesses."""
    rng = random.Random(4)
    time = TargetTimeFit()
    for _ in range(2000):
        num_sequences = rng.randint(1, 16)
        num_proposals = rng.choice((0, 2, 4)) * num_sequences
        time.add(num_sequences, num_proposals, plane_seconds(num_sequences, num_proposals) * rng.uniform(0.95, 1.05))

    assert time.proposal_s == pytest.approx(0.1, rel=0.2)
    for at in ((1, 0), (8, 0), (8, 40), (16, 16)):
        assert time.predict(*at) == pytest.approx(plane_seconds(*at), rel=0.1)


@pytest.mark.parametrize("seconds", [(1.0, 1.0), (1.0, 0.5)])
def test_proposals_that_were_never_made_or_made_steps_faster_are_taken_to_be_free(seconds: tuple[float, float]) -> None:
    """The second is noise: nothing can be learned of it but to try on."""
    time = TargetTimeFit()
    for number in range(100):
        time.add(8, number % 2 if seconds[1] < seconds[0] else 0, seconds[number % 2])

    assert time.proposal_s == 0.0
    assert time.predict(8, 40) == time.predict(8, 0)


def test_target_time_after_an_outlier_has_hardly_moved() -> None:
    """One step that took a hundred times as long, while the machine did something else."""
    time = TargetTimeFit()
    for number in range(200):
        time.add(8, number % 7, plane_seconds(8, number % 7))

    time.add(8, 3, 600.0)

    assert time.predict(8, 3) == pytest.approx(plane_seconds(8, 3), rel=0.1)

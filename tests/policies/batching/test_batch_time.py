"""How long batches take, learned."""

from __future__ import annotations

from random import Random

import pytest

from policies.batching.batch_time import BatchTime


def test_batch_time_knows_nothing_at_first() -> None:
    """Nobody is dropped for a guess."""
    assert BatchTime().expected_s(64) == 0.0


def test_batch_time_of_one_size_is_their_mean() -> None:
    """Nothing can be said of an input's own part."""
    time = BatchTime()
    for _ in range(10):
        time.learn(4, 0.01)

    assert time.expected_s(64) == pytest.approx(0.01)


def test_batch_time_learns_both_parts() -> None:
    """6 ms and 0.35 ms an input, seen through noise."""
    time = BatchTime()
    random = Random(1)
    for _ in range(300):
        size = random.randint(1, 64)
        time.learn(size, (0.006 + 0.00035 * size) * random.uniform(0.9, 1.1))

    assert time.expected_s(1) == pytest.approx(0.00635, rel=0.15)
    assert time.expected_s(64) == pytest.approx(0.0284, rel=0.1)


def test_batch_time_follows_a_backend_that_changes() -> None:
    """The past fades."""
    time = BatchTime()
    for seconds in (5.0, *[0.01] * 400):
        time.learn(1, seconds)

    assert time.expected_s(1) == pytest.approx(0.01, rel=0.1)


def test_batch_time_is_never_negative() -> None:
    """Larger batches that took less teach nothing absurd."""
    time = BatchTime()
    time.learn(1, 1.0)
    time.learn(64, 0.1)

    assert 0 <= time.expected_s(2000) <= 1.0

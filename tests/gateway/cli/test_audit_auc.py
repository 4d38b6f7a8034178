"""The area under the curve, and how far to believe it."""

from __future__ import annotations

from random import Random

import pytest

from gateway.cli.audit.auc import Auc, area


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ([1, 2], [3, 4], 1.0),
        ([3, 4], [1, 2], 0.0),
        ([1, 1], [1, 1], 0.5),
        ([1, 3], [2, 4], 0.75),
        ([1, 2, 2], [2], (1 + 0.5 + 0.5) / 3),
    ],
)
def test_area_is_the_share_of_pairs_in_order(first: list[float], second: list[float], value: float) -> None:
    """Ties count by half."""
    assert area(first, second).value == pytest.approx(value)


def test_area_of_groups_apart_has_a_width() -> None:
    """Ten of each that do not overlap are no proof of 1."""
    few, many = (area(range(count), range(1000, 1000 + count)) for count in (10, 1000))

    assert few.upper == many.upper == pytest.approx(1.0)
    assert 0.7 < few.lower < 0.9
    assert many.lower > 0.99


def test_area_covers_the_truth_in_nineteen_of_twenty() -> None:
    """Two normal groups a standard deviation apart have 0.760; of 400 samples about 380 include it."""
    random = Random(1)
    covered = 0
    for _ in range(400):
        first = [random.gauss(0, 1) for _ in range(40)]
        second = [random.gauss(1, 1) for _ in range(40)]
        auc = area(first, second)
        covered += auc.lower <= 0.7602 <= auc.upper

    assert 368 <= covered <= 394


def test_tells_needs_to_be_sure_and_looks_both_ways() -> None:
    """What is slower where it was stored tells as much."""
    assert Auc(0.8, 0.7, 0.9).separates(0.1)
    assert Auc(0.2, 0.1, 0.3).separates(0.1)
    assert not Auc(0.8, 0.55, 0.9).separates(0.1)
    assert not Auc(0.5, 0.45, 0.55).separates(0.0)

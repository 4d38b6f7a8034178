"""The window of rows, against a deque."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cache.semantic.decision.rolling_rows import RollingRows

_CAPACITY = 100


@given(st.lists(st.one_of(st.integers(1, 90), st.just(0)), max_size=20))
def test_window_holds_the_last_rows_in_order(bursts: list[int]) -> None:
    """Any number of rows added in between any clearings (0), and a copy of it is the same."""
    window, model, number = RollingRows(_CAPACITY, 2), deque[tuple[float, float]](maxlen=_CAPACITY), 0
    for burst in bursts:
        if burst == 0:
            window.clear()
            model.clear()
        for _ in range(burst):
            number += 1
            window.append((float(number), -float(number)))
            model.append((float(number), -float(number)))
        copy = RollingRows(_CAPACITY, 2)
        copy.load(window.dump())
        copy.append((1.0, 2.0))

        assert [tuple(row) for row in window.rows.tolist()] == list(model)
        assert copy.rows.tolist() == [*map(list, list(model)[-(_CAPACITY - 1) :]), [1.0, 2.0]]


@pytest.mark.parametrize(
    "dumped",
    [b"123", np.zeros(3, "<f4").tobytes(), np.full(2, np.nan, "<f4").tobytes(), np.zeros(202, "<f4").tobytes()],
    ids=["no numbers", "half a row", "no number", "too many"],
)
def test_window_refuses_what_does_not_fit(dumped: bytes) -> None:
    """And stays what it was."""
    window = RollingRows(_CAPACITY, 2)
    window.append((1.0, 2.0))

    with pytest.raises(ValueError):
        window.load(dumped)
    assert window.rows.tolist() == [[1.0, 2.0]]

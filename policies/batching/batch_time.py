"""How long a batch takes: a part that is always the same and a part for each input, learned from past ones."""

from __future__ import annotations

_FORGETTING = 0.98
"""What the past counts after another batch: the last fifty or so matter."""
_MIN_SPREAD = 1e-3
"""Variance of sizes, in inputs squared, below which only the mean of the times says anything."""


class BatchTime:
    """Least squares over seconds = fixed + each x inputs, the latest counting most, neither part below zero."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._size = self._square = 0.0
        self._seconds = self._product = 0.0
        self._fixed_s = self._each_s = 0.0

    def learn(self, size: int, seconds: float) -> None:
        """A batch of so many inputs took that long."""
        self._weight = self._weight * _FORGETTING + 1.0
        self._size = self._size * _FORGETTING + size
        self._square = self._square * _FORGETTING + size * size
        self._seconds = self._seconds * _FORGETTING + seconds
        self._product = self._product * _FORGETTING + size * seconds
        self._fit()

    def expected_s(self, size: int) -> float:
        """Seconds for a batch of so many inputs; 0 while nothing is known."""
        return self._fixed_s + self._each_s * size

    def _fit(self) -> None:
        mean_size = self._size / self._weight
        mean_s = self._seconds / self._weight
        spread = self._square / self._weight - mean_size**2
        self._each_s = 0.0
        if spread >= _MIN_SPREAD:
            self._each_s = max(0.0, (self._product / self._weight - mean_size * mean_s) / spread)
        self._fixed_s = max(0.0, mean_s - self._each_s * mean_size)

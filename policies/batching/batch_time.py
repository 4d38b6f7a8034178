"""Predicts how long a batch takes, as a fixed part and a part for each input, fitted to past batches."""

from __future__ import annotations

_DECAY = 0.98
"""The weight of older batches is multiplied by this with each new one: about the last fifty matter."""
_MIN_SPREAD = 1e-3
"""Below this variance of sizes, in inputs squared, a slope cannot be fitted: only the mean time is used."""


class BatchTime:
    """Weighted least squares of seconds = fixed + each x inputs; the latest batches weigh most, no part is negative."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._size = self._square = 0.0
        self._seconds = self._product = 0.0
        self._fixed_s = self._each_s = 0.0

    def learn(self, size: int, seconds: float) -> None:
        """Take a measured batch into account."""
        self._weight = self._weight * _DECAY + 1.0
        self._size = self._size * _DECAY + size
        self._square = self._square * _DECAY + size * size
        self._seconds = self._seconds * _DECAY + seconds
        self._product = self._product * _DECAY + size * seconds
        self._fit()

    def expected_s(self, size: int) -> float:
        """The predicted seconds of a batch of so many inputs; 0 before the first one."""
        return self._fixed_s + self._each_s * size

    def _fit(self) -> None:
        mean_size = self._size / self._weight
        mean_s = self._seconds / self._weight
        spread = self._square / self._weight - mean_size**2
        self._each_s = 0.0
        if spread >= _MIN_SPREAD:
            self._each_s = max(0.0, (self._product / self._weight - mean_size * mean_s) / spread)
        self._fixed_s = max(0.0, mean_s - self._each_s * mean_size)

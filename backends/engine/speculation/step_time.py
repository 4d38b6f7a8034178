"""How long steps take, by what they carry: fitted to the latest measurements, older ones fade."""

from __future__ import annotations

_TIME_WEIGHT, ALONE_WEIGHT = 0.02, 0.1
"""Of a new measurement: the older ones fade over some 50 steps, or 10 of those that are rare while drafts are tried."""
_OUTLIER = 4.0
"""A step that takes this many times what was expected says something of the machine, not of the step."""
_LEAST_VARIANCE = 0.01
"""Of rows; below it a slope is noise over noise."""
_LEAST_SPREAD = 0.1
"""Of rows, as a share of their mean: where they have spread less, a slope is mostly noise over noise."""


class StepTimeFit:
    """Seconds of a step as a line over its rows, fitted to the latest measurements.

    What no rows at all would take, and what one more takes, are never less than nothing. `weight` is that of a new
    measurement, once there are enough. `rows_share`: of a step's time, what is taken to be its rows', 0..1, where they
    have hardly varied; 0 invites trying more of them.
    """

    def __init__(self, weight: float = _TIME_WEIGHT, rows_share: float = 0.0) -> None:
        self._weight = weight
        self._rows_share = rows_share
        self._count = 0
        self._rows = self._seconds = 0.0
        self._variance = self._covariance = 0.0

    @property
    def is_known(self) -> bool:
        """Whether anything was measured, by a clock that moves."""
        return self._seconds > 0

    @property
    def row_s(self) -> float:
        """Seconds that one more row takes, 0 or more."""
        if not self._rows:
            return 0.0
        most, doubt = self._seconds / self._rows, (_LEAST_SPREAD * self._rows) ** 2
        slope = (self._covariance + doubt * self._rows_share * most) / (self._variance + doubt)
        return min(max(slope, 0.0), most)

    def add(self, rows: int, seconds: float) -> None:
        """Notes one measured step."""
        self._count += 1
        weight = max(1 / self._count, self._weight)
        if self._count > 4:
            seconds = min(seconds, _OUTLIER * self.predict(rows))
        rows_off, seconds_off = rows - self._rows, seconds - self._seconds
        self._rows += weight * rows_off
        self._seconds += weight * seconds_off
        self._variance = (1 - weight) * (self._variance + weight * rows_off * rows_off)
        self._covariance = (1 - weight) * (self._covariance + weight * rows_off * seconds_off)

    def predict(self, rows: int) -> float:
        """Seconds of a step with so many rows; never less than a tenth of the mean."""
        return max(self._seconds + self.row_s * (rows - self._rows), 0.1 * self._seconds)


class TargetTimeFit:
    """Seconds of the target's step as a plane over its sequences and the proposals that it checks.

    The two cost differently: each sequence has keys and values of its own to read, its proposals share them. Before one
    of them has varied, it is taken to cost nothing.
    """

    def __init__(self) -> None:
        self._count = 0
        self._sequences = self._proposals = self._seconds = 0.0
        self._variances = [0.0, 0.0]
        self._both = 0.0
        self._covariances = [0.0, 0.0]

    @property
    def is_known(self) -> bool:
        """Whether anything was measured, by a clock that moves."""
        return self._seconds > 0

    @property
    def proposal_s(self) -> float:
        """Seconds that checking one more proposal takes, 0 or more."""
        return self._slopes()[1]

    def add(self, num_sequences: int, num_proposals: int, seconds: float) -> None:
        """Notes one measured step."""
        self._count += 1
        weight = max(1 / self._count, _TIME_WEIGHT)
        if self._count > 4:
            seconds = min(seconds, _OUTLIER * self.predict(num_sequences, num_proposals))
        off = num_sequences - self._sequences, num_proposals - self._proposals
        seconds_off = seconds - self._seconds
        self._sequences += weight * off[0]
        self._proposals += weight * off[1]
        self._seconds += weight * seconds_off
        kept = 1 - weight
        self._both = kept * (self._both + weight * off[0] * off[1])
        for axis, at in enumerate(off):
            self._variances[axis] = kept * (self._variances[axis] + weight * at * at)
            self._covariances[axis] = kept * (self._covariances[axis] + weight * at * seconds_off)

    def predict(self, num_sequences: int, num_proposals: int) -> float:
        """Seconds of a step; never less than a tenth of the mean."""
        sequence_s, proposal_s = self._slopes()
        off_s = sequence_s * (num_sequences - self._sequences) + proposal_s * (num_proposals - self._proposals)
        return max(self._seconds + off_s, 0.1 * self._seconds)

    def _slopes(self) -> tuple[float, float]:
        """Of a sequence and of a proposal, by least squares; variances get a little more, against noise over noise."""
        first, second = (variance + _LEAST_VARIANCE for variance in self._variances)
        of_first, of_second = self._covariances
        size = first * second - self._both * self._both
        sequence_s = (of_first * second - of_second * self._both) / size
        proposal_s = (of_second * first - of_first * self._both) / size
        if sequence_s < 0:
            return 0.0, max(of_second / second, 0.0)
        if proposal_s < 0:
            return max(of_first / first, 0.0), 0.0
        return sequence_s, proposal_s

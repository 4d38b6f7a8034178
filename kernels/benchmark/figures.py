"""What the benchmark of the kernels finds out, as numbers: nothing here needs a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One operation with one real case.

    `us`: microseconds of a call, None where it could not be run. `num_bytes`, `num_operations`: what it cannot do
    without. `peers_us`: microseconds of others at the same work. `problem`: what is wrong with its result, None where
    it was found right. `notes`: why peers could not be measured.
    """

    op: str
    case: str
    us: float | None = None
    num_bytes: int = 0
    num_operations: int = 0
    peers_us: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def gb_per_s(self) -> float | None:
        """Bytes that it cannot do without, by its time; 10^9 of them a second."""
        return None if self.us is None else self.num_bytes / self.us / 1e3

    @property
    def tflop_per_s(self) -> float | None:
        """Additions and multiplications by its time; 10^12 of them a second."""
        return None if self.us is None else self.num_operations / self.us / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRun:
    """All that one run found out.

    `copy_gb_per_s`: what a copy of memory reads and writes, measured in the same run. `problems`: operation and case of
    every wrong result, and what is wrong, the small cases that are not timed among them.
    """

    device: Mapping[str, object]
    copy_gb_per_s: float
    measurements: tuple[Measurement, ...]
    num_checked: int
    problems: tuple[tuple[str, str, str], ...]

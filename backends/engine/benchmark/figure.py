"""What a benchmark finds out, and what its measurements share: one figure, the setting, and rounds that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

Run = Callable[[], float]
"""One measurement; a rate, or seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFigure:
    """A number that is asked for, and what was measured; `holds` is None where it could not be measured.

    `value` is `measured` as a number, `detail` what it was worked out from.
    """

    name: str
    asked: str
    measured: str
    holds: bool | None
    value: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSetting:
    """What every measurement is given.

    `folder`: the made model. `pair`: the embedded models' folder, None where there are none. `num_rounds` at most, as
    far as `seconds` last, and two at least. `say` takes a line of progress.
    """

    folder: Path
    pair: Path | None
    threads: int
    num_rounds: int
    seconds: float
    say: Callable[[str], None]


class PeerMissing(Exception):
    """A program to compare with is not installed; the message says how to get it."""


def take_turns(setting: MeasurementSetting, runs: Mapping[str, Run], *, say: str) -> dict[str, list[float]]:
    """What each of `runs` gave, round by round: all in turn, so that what else the machine does meets them alike.

    One round more goes before, to warm up, and is left out.
    """
    began = time.perf_counter()
    results: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(setting.num_rounds + 1):
        if number > 2 and time.perf_counter() - began > setting.seconds:
            break
        for name, run in runs.items():
            result = run()
            if number:
                results[name].append(result)
        latest = ", ".join(f"{name} {found[-1]:.3g}" for name, found in results.items() if found)
        setting.say(f"{say}: {f'round {number}: {latest}' if number else 'warmed up'}")
    return results


def ratio(results: Mapping[str, Sequence[float]], over: str, under: str) -> float:
    """The median over the rounds of one result over another of the same round."""
    return median(one / other for one, other in zip(results[over], results[under], strict=True))


def at_least(name: str, asked: float, value: float, detail: str = "") -> BenchmarkFigure:
    """A factor that must not be lower than `asked`."""
    return BenchmarkFigure(
        name=name,
        asked=f">= {asked:g} x",
        measured=f"{value:.2f} x",
        holds=value >= asked,
        value=value,
        detail=detail,
    )


def at_most(name: str, asked: float, value: float, detail: str = "") -> BenchmarkFigure:
    """A factor that must not be higher than `asked`."""
    return BenchmarkFigure(
        name=name,
        asked=f"<= {asked:g} x",
        measured=f"{value:.2f} x",
        holds=value <= asked,
        value=value,
        detail=detail,
    )


def skipped(name: str, asked: str, why: str) -> BenchmarkFigure:
    """A figure that could not be measured here."""
    return BenchmarkFigure(name=name, asked=asked, measured="skipped", holds=None, detail=why)


def medians(results: Mapping[str, Sequence[float]], unit: str = "tok/s") -> str:
    """The medians of all results in one line."""
    return ", ".join(f"{name} {median(found):.4g}" for name, found in results.items() if found) + f" {unit}"

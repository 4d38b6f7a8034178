"""What became of one check: a verdict, the figure that was measured, why, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """Only `FAIL` makes the command fail."""

    PASS = "pass"
    """What must happen happened, within its figure."""
    PARTIAL = "partial"
    """It happened, but over its figure, or not in every case; nothing wrong was told to a client."""
    SAFE = "safe"
    """The client got a clear error where a better policy could have answered."""
    FAIL = "fail"
    """It did not happen."""
    SKIPPED = "skipped"
    """It was not tried; the reason says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one check. `measured` is a figure as text, `remedy` what an operator can do."""

    verdict: Verdict
    measured: str = ""
    reason: str = ""
    remedy: str = ""


def passed(measured: str, reason: str = "") -> Outcome:
    """What must happen happened; `reason` says what was left out or shortened."""
    return Outcome(Verdict.PASS, measured, reason)


def partial(measured: str, reason: str, remedy: str = "") -> Outcome:
    """Held, but not to its figure."""
    return Outcome(Verdict.PARTIAL, measured, reason, remedy)


def safe(measured: str, reason: str, remedy: str = "") -> Outcome:
    """A clear error instead of an answer."""
    return Outcome(Verdict.SAFE, measured, reason, remedy)


def failed(measured: str, reason: str, remedy: str = "") -> Outcome:
    """Not held."""
    return Outcome(Verdict.FAIL, measured, reason, remedy)


def skipped(reason: str, remedy: str = "") -> Outcome:
    """Not tried."""
    return Outcome(Verdict.SKIPPED, "", reason, remedy)

"""The outcome of a check: its verdict, the measured figure, the reason, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CheckVerdict(Enum):
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
class CheckOutcome:
    """The outcome of one check. `measured` is a figure as text, `remedy` what an operator can do."""

    verdict: CheckVerdict
    measured: str = ""
    reason: str = ""
    remedy: str = ""


def passed(measured: str, reason: str = "") -> CheckOutcome:
    """What must happen happened; `reason` says what was left out or shortened."""
    return CheckOutcome(CheckVerdict.PASS, measured, reason)


def partial(measured: str, reason: str, remedy: str = "") -> CheckOutcome:
    """It happened, but the figure was missed."""
    return CheckOutcome(CheckVerdict.PARTIAL, measured, reason, remedy)


def safe(measured: str, reason: str, remedy: str = "") -> CheckOutcome:
    """A clear error instead of an answer."""
    return CheckOutcome(CheckVerdict.SAFE, measured, reason, remedy)


def failed(measured: str, reason: str, remedy: str = "") -> CheckOutcome:
    """What must happen did not."""
    return CheckOutcome(CheckVerdict.FAIL, measured, reason, remedy)


def skipped(reason: str, remedy: str = "") -> CheckOutcome:
    """The check was not run."""
    return CheckOutcome(CheckVerdict.SKIPPED, "", reason, remedy)

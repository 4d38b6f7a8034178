"""The report of a run: a table of 100 columns for people, and the same as JSON for programs."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence

from gateway.selftest.conduct import CheckResult
from gateway.selftest.verdict import CheckVerdict

_WIDTH = 100
_ID, _FAULT, _VERDICT = 3, 48, 7
_INDENT = " " * (_ID + 2)


def table(results: Sequence[CheckResult]) -> str:
    """A line for each check, with the reason and the remedy below it if there are any."""
    lines = [f"{'id':<{_ID}} {'fault':<{_FAULT}} {'verdict':<{_VERDICT}} measured", "-" * _WIDTH]
    for result in results:
        lines += _row(result)
    return "\n".join(lines)


def summary(results: Sequence[CheckResult], took_s: float) -> str:
    """How many of each verdict, and how long the run took, in a line."""
    found = Counter(result.outcome.verdict for result in results)
    counts = ", ".join(f"{found[verdict]} {verdict.value}" for verdict in CheckVerdict if found[verdict])
    return f"{counts}; {took_s:.0f} s"


def has_failed(results: Sequence[CheckResult]) -> bool:
    """Whether anything failed."""
    return any(result.outcome.verdict is CheckVerdict.FAIL for result in results)


def as_json(results: Sequence[CheckResult], *, subject: str, version: str, is_quick: bool, notes: Sequence[str]) -> str:
    """The whole report as JSON."""
    found = Counter(result.outcome.verdict for result in results)
    document = {
        "slipstream": version,
        "subject": subject,
        "quick": is_quick,
        "notes": list(notes),
        "counts": {verdict.value: found[verdict] for verdict in CheckVerdict},
        "checks": [
            {
                "id": result.check.id,
                "fault": result.check.fault,
                "verdict": result.outcome.verdict.value,
                "measured": result.outcome.measured,
                "reason": result.outcome.reason,
                "remedy": result.outcome.remedy,
                "seconds": round(result.took_s, 3),
            }
            for result in results
        ],
    }
    return json.dumps(document, indent=2)


def _row(result: CheckResult) -> list[str]:
    check, outcome = result.check, result.outcome
    head = f"{check.id:<{_ID}} {check.fault:<{_FAULT}} {outcome.verdict.value:<{_VERDICT}} "
    measured = textwrap.wrap(outcome.measured, _WIDTH - len(head)) or [""]
    lines = [(head + measured[0]).rstrip(), *(" " * len(head) + more for more in measured[1:])]
    for text in (outcome.reason, outcome.remedy and f"-> {outcome.remedy}"):
        lines += textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return lines

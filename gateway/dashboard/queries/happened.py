"""What has happened over a span that may be why figures moved: another policy, a backend out, a budget spent."""

from __future__ import annotations

from typing import Any

from gateway.dashboard.queries.stood import stood
from gateway.dashboard.ranges import Range
from gateway.revisions import Revisions
from gateway.sql.database import Transaction

_MOST = 20
_SAID = {"out": "{} out of rotation", "spent": "budget {} spent"}


def happened(transaction: Transaction, span: Range, revisions: Revisions) -> list[dict[str, Any]]:
    """The newest first, each as `at`, `text` and the `kind` of colour that it has. The policy's last change is known of
    this process only."""
    begin, now = span.ticks[0].at, revisions.in_force
    found: list[dict[str, Any]] = []
    if revisions.before is not None and now.at_s >= begin:
        found.append({"at": now.at_s, "text": f"policy {now.name}", "kind": "before"})
    for label, pasts in stood(transaction, span, tuple(_SAID)).items():
        for name, past in pasts.items():
            for place, value in enumerate(past.most):
                if value and not (place and past.most[place - 1]):
                    at = span.ticks[place].at
                    found.append({"at": at, "text": _SAID[name].format(label), "kind": "alert"})
    return sorted(found, key=lambda mark: (-float(mark["at"]), mark["text"]))[:_MOST]

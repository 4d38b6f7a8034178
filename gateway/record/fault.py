"""Whose fault it is that a call has failed, in one word for the ledger. Pure; asked of calls that have."""

from __future__ import annotations

from backends.errors import Fault
from backends.stream import StreamEnd

_UPSTREAM_REFUSALS = frozenset({401, 403, 408, 429})
"""Statuses below 500 with which an upstream refuses the gateway, and not what the client has sent."""


def fault_of(status: int, own: Fault | None, end: StreamEnd) -> Fault:
    """`own` is that of the gateway's error, where it was one; else what the upstream has answered tells."""
    if status == 499 or end is StreamEnd.CLIENT_GONE:
        return "client"
    if own is not None:
        return own
    if 400 <= status < 500 and status not in _UPSTREAM_REFUSALS:
        return "client"
    return "upstream"

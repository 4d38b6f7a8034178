"""Every check, in the order of the list."""

from __future__ import annotations

from gateway.selftest.check import Check
from gateway.selftest.failover import checks as failover
from gateway.selftest.faults import (
    bodies,
    caching,
    changes,
    clients,
    failing,
    meaning,
    money,
    overload,
    release,
    secrecy,
    speculation,
    stores,
    streams,
    time_passing,
)

_MODULES = (
    streams,
    clients,
    failing,
    stores,
    money,
    caching,
    meaning,
    overload,
    bodies,
    secrecy,
    changes,
    time_passing,
    speculation,
    release,
    failover,
)


def _order(check: Check) -> tuple[bool, int]:
    """Faults by their number, then what has letters before it."""
    return not check.id.isdecimal(), int(check.id.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))


CHECKS: tuple[Check, ...] = tuple(sorted((check for module in _MODULES for check in module.CHECKS), key=_order))

"""Every check, in the order of the list."""

from __future__ import annotations

from gateway.selftest import streams
from gateway.selftest.check import Check

CHECKS: tuple[Check, ...] = (*streams.CHECKS,)

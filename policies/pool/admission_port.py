"""What a pool asks of whoever decides when a call may go, and to which member first."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from backends.protocol import Call
from policies.pool.load.demand import Demand
from policies.pool.load.in_flight import InFlightAttempt


class Chooser(Protocol):
    """A pool's balancer of one operation."""

    def choose(self, tried: Collection[int], demand: Demand | None) -> int | None:
        """The index of the member to ask; None if all are out of rotation or in `tried`."""

    def retry_in_s(self) -> float | None:
        """Seconds until a member can be chosen again; None if none ever will be."""


AdmittedAttempt = tuple[int, InFlightAttempt]
"""The member that takes a call, and its attempt, which has begun: whoever gets this has to see to it that it ends."""


class AdmissionPort(Protocol):
    """In front of a pool's first choice. Retries do not come by here: they are few, and have waited already."""

    def enter_nowait(self, call: Call, demand: Demand, chooser: Chooser) -> AdmittedAttempt | None:
        """The member that can take the call now. None where it has to ask `enter`."""

    async def enter(self, call: Call, demand: Demand, chooser: Chooser) -> AdmittedAttempt:
        """Wait until a member can take the call, which `enter_nowait` has turned down.

        Raises: Overloaded, NoBackendAvailable.
        """

"""What a pool asks of whoever decides when a call may go, and to which place first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from backends.protocol import Call
from policies.pool.load.demand import Demand
from policies.pool.load.in_flight import InFlightAttempt
from policies.pool.load.match import Match
from policies.pool.place import Place


class Chooser(Protocol):
    """A pool's balancer for a call."""

    @property
    def places(self) -> Sequence[Place]:
        """All that it ever chooses from."""

    def choose(self, tried: Collection[Place], match: Match | None) -> Place | None:
        """The place to ask; None if all are out of rotation or in `tried`."""

    def retry_in_s(self) -> float | None:
        """Seconds until a place can be chosen again; None if none ever will be."""


class Admitted(NamedTuple):
    """The place that takes a call, what was looked up to choose it, and the attempt, which has begun there: whoever
    gets this has to see to it that it ends."""

    place: Place
    match: Match
    attempt: InFlightAttempt

    def give_up(self, call: Call) -> None:
        """The attempt does not go out after all."""
        self.attempt.end()
        reservation, call.facts.reservation = call.facts.reservation, None
        if reservation is not None:
            reservation.give_back()


class AdmissionPort(Protocol):
    """In front of a pool's first choice: asks the balancer until a place has room, and begins the attempt there.

    Retries do not come by here: they are few, and have waited already.
    """

    def enter_nowait(self, call: Call, demand: Demand, chooser: Chooser) -> Admitted | None:
        """Where the call can go now. None where it has to ask `enter`."""

    async def enter(self, call: Call, demand: Demand, chooser: Chooser) -> Admitted:
        """Wait until a place can take the call, which `enter_nowait` has turned down.

        Raises: Overloaded, NoBackendAvailable.
        """

"""A call that waits at a route's gate, and whose turn it takes there."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping
from operator import attrgetter

from backends.protocol import Call, Priority, Slo
from policies.admission.queue import Waiting
from policies.pool.admission_port import Admitted, Chooser
from policies.pool.load.demand import Demand
from policies.pool.load.replica import Replica

CLIENT_OF: Mapping[str, Callable[[Call], str]] = {
    "key": attrgetter("key_id"),
    "tenant": attrgetter("tenant"),
    # A user is one of its tenant's: nobody shares another's turn by taking its name.
    "user": lambda call: f"{call.tenant}/{call.user}",
}
"""Whose turn a call takes, by what fairness goes by."""


class QueuedCall(Waiting):
    """With the balancer that chooses for it, and the future by which its task is told where to go."""

    __slots__ = ("chooser", "outcome")

    def __init__(
        self, demand: Demand, slo: Slo, chooser: Chooser, *, client: str, priority: Priority, arrived_at: float
    ) -> None:
        super().__init__(demand, slo, client=client, priority=priority, arrived_at=arrived_at)
        self.chooser = chooser
        self.outcome: Future[Admitted] | None = None
        """None until it stands in the queue."""

    @property
    def has_left(self) -> bool:
        """Its client is gone, and its task has not been told yet."""
        return self.outcome is not None and self.outcome.cancelled()

    @property
    def replicas(self) -> list[Replica]:
        """The backends that could ever take it."""
        return [place.counted for place in self.chooser.places]

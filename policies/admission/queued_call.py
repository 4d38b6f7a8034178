"""A call in the queue of a route's gate, and the client to whom fairness charges it."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping
from operator import attrgetter

from backends.protocol import Call, Slo
from policies.admission.queue import Waiting
from policies.pool.admission_port import Admitted, Chooser
from policies.pool.load.demand import Demand
from policies.pool.load.replica import Replica

CLIENT_OF: Mapping[str, Callable[[Call], str]] = {
    "key": attrgetter("key_id"),
    "tenant": attrgetter("tenant"),
    # Users are told apart within their tenant, so that a caller cannot use up another tenant's share by its name.
    "user": lambda call: f"{call.tenant}/{call.user}",
}
"""The client of a call, for each value of `fairness.by`."""


class QueuedCall(Waiting):
    """A queued call, with the balancer that chooses a place for it and the future on which its task waits."""

    __slots__ = ("call", "chooser", "outcome")

    def __init__(
        self, call: Call, demand: Demand, slo: Slo, chooser: Chooser, *, client: str, arrived_at: float
    ) -> None:
        super().__init__(demand, slo, client=client, priority=call.priority, arrived_at=arrived_at)
        self.call = call
        self.chooser = chooser
        self.outcome: Future[Admitted] | None = None
        """None until it is queued."""

    @property
    def has_disconnected(self) -> bool:
        """Whether its client has disconnected while it was queued."""
        return self.outcome is not None and self.outcome.cancelled()

    @property
    def replicas(self) -> list[Replica]:
        """The backends that could ever take it."""
        return [place.counted for place in self.chooser.places]

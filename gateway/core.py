"""What every endpoint shares: the policy in force, clock, settings, and who is told of finished requests."""

from __future__ import annotations

import asyncio
import itertools
import secrets

from backends.answer_budget import AnswerBudget
from backends.clock import Clock
from gateway.api.owners import Owners
from gateway.http.body_budget import BodyBudget
from gateway.http.incoming import Incoming, Pace
from gateway.keys.stored_keys import StoredKeys
from gateway.limits.reserving import Reserving
from gateway.metrics.metrics import Metrics
from gateway.overdue import Overdue
from gateway.record.booking import Booking
from gateway.record.exchange import Observer
from gateway.record.tracing import Tracer
from gateway.runtime import Runtime
from gateway.settings import Settings


class Core:
    """One per process. `runtime` is replaced as a whole on reload; endpoints take it once per request."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        runtime: Runtime,
        *,
        metrics: Metrics,
        observer: Observer,
        tracer: Tracer | None,
        owners: Owners,
        booking: Booking | None,
        reserving: Reserving,
        keys: StoredKeys | None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.runtime = runtime
        self.metrics = metrics
        self.observer = observer
        self.tracer = tracer
        self.bodies = BodyBudget(settings.max_bodies, settings.max_bodies_per_key, settings.max_bodies_per_tenant)
        self.long_bodies = asyncio.Lock()
        """Held while a long body is read in a thread: several at once would leave the event loop no turn."""
        self.answers = AnswerBudget(settings.max_answers, clock)
        self.owners = owners
        self.booking = booking
        self.reserving = reserving
        self.keys = keys
        self.is_draining = False
        self.in_flight = 0
        self.overdue = Overdue(clock)
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def request_id(self, incoming: Incoming) -> str:
        """The client's own, or a new one that is unique among all processes: a random prefix and a counter."""
        return incoming.request_id.decode("ascii") or f"req_{self._prefix}{next(self._numbers):08x}"

    def pace(self) -> Pace:
        """For one body that is waited for."""
        return Pace(self.clock, self.settings.min_body_rate)

    def acquire(self) -> Runtime:
        """The policy in force, held until its `release`."""
        runtime = self.runtime
        runtime.in_flight += 1
        return runtime

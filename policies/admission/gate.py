"""The admission gate of one route: it sends a call when a backend has room for it and can answer in time.

The backend is chosen when the call leaves the queue, not when it arrives: only then the backends' loads are known.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from backends.clock import Clock
from backends.errors import NoBackendAvailable, Overloaded, UpstreamError
from backends.protocol import Call, Priority, Slo
from policies.admission.fairness import Counters
from policies.admission.judge import AdmissionJudge
from policies.admission.queue import AdmissionQueue
from policies.admission.queue_pace import QueuePace
from policies.admission.queued_call import CLIENT_OF, QueuedCall
from policies.admission.refusals import Refusals, Shed
from policies.admission.settings import AdmissionPolicy
from policies.pool.admission_port import Admitted, Chooser
from policies.pool.load.demand import Demand
from policies.pool.load.match import Match, look_up
from policies.pool.load.replica import Replica
from policies.pool.place import Place
from policies.pool.prompts.prefix_index import PrefixIndex

_MAX_REORDERED = 8
"""Among so many calls of one client, the one with the most cached tokens may go first."""
_MIN_SLACK = 0.25
"""A call that may wait for less than this share of its limit keeps its turn, whatever is cached."""

_YIELD_S = 30.0
"""For so long after a call, calls of lower priority leave room for another one of its priority."""
_LOWER = tuple(tuple(lower for lower in Priority if lower > priority) for priority in Priority)


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """The length of a gate's queue, in how many seconds it will be empty, and what was refused since the start."""

    waiting: int
    waiting_tokens: int
    queue_s: float
    shed: Mapping[Shed, int]
    shed_tokens: int
    entered: int


class Gate:
    """Sends calls to backends, one at a time, in the order of the queue."""

    def __init__(
        self,
        name: str,
        policy: AdmissionPolicy,
        slo: Slo,
        index: PrefixIndex,
        counters: Counters,
        *,
        on_join: Callable[[Gate, QueuedCall], None],
        clock: Clock,
        beyond: Sequence[Replica] = (),
    ) -> None:
        """`slo` is for calls that have none of their own; `beyond` are the replicas to which late ones go.

        `on_join` is called for each call that is queued; from then on the caller is responsible for `send_next`.
        """
        self.queue: AdmissionQueue[QueuedCall] = AdmissionQueue(counters)
        self._pace = QueuePace()
        self._refusals = Refusals(name, self.queue, self._pace)
        self._counters = counters
        self._name = name
        self._policy = policy
        self._slo = slo
        self._judge = AdmissionJudge(policy, slo, beyond)
        self._index = index
        self._on_join = on_join
        self._clock = clock
        self.deadline_reason: Shed = "waited" if policy.on_overload == "queue" else "late"
        """Why a call is refused that is still queued at its `send_by`."""
        self._yields_until = [-inf for _ in Priority]
        """For each priority, until when its calls leave room for those of a higher one, which came recently."""
        self._num_entered = 0
        self._client_of = CLIENT_OF[policy.fairness.by]
        self._output_weight = policy.fairness.output_weight

    def enter_nowait(self, call: Call, demand: Demand, chooser: Chooser) -> Admitted | None:
        """Send the call without waiting: to the place that the balancer prefers, if it can be there well in time.

        This is the common path, and it takes no turn from anybody, since it is used only while the queue is empty. It
        returns None, so that the call takes `enter`, also for some time after a call of a higher priority: the next one
        of these must not find all backends full.
        """
        now = self._clock.now()
        self._num_entered += 1
        priority = call.priority
        for lower in _LOWER[priority]:
            self._yields_until[lower] = now + _YIELD_S
        if self.queue.tokens or now < self._yields_until[priority]:
            return None
        waited_s = call.facts.waited_s or 0.0
        slo = call.slo or self._slo
        limit_s = slo.first_token_limit_s(demand.tokens)
        match = look_up(demand, self._index)
        full: tuple[Place, ...] = ()
        while (place := chooser.choose(full, match)) is not None:
            replica = place.counted
            has_quota = place.quota is None or place.quota_wait_s(call) <= 0
            if has_quota and self._judge.can_hold(replica, demand.tokens, now):
                if not self._judge.is_well_in_time(replica, match, limit_s - waited_s):
                    return None
                call.facts.waited_s = waited_s
                return self._begin(place, call, match, self._client_of(call), limit_s, now)
            full = (*full, place)
        return None

    async def enter(self, call: Call, demand: Demand, chooser: Chooser) -> Admitted:
        """Wait for a place that can take the call.

        Raises: Overloaded, NoBackendAvailable.
        """
        now = self._clock.now()
        facts = call.facts
        # Time that the call has waited at another gate counts towards its deadline.
        arrived_at = now - (facts.waited_s or 0.0)
        slo = call.slo or self._slo
        client = self._client_of(call)
        waiting = QueuedCall(call, demand, slo, chooser, client=client, arrived_at=arrived_at)
        facts.waited_s = now - arrived_at
        if not self.queue:
            match = look_up(demand, self._index)
            if (admitted := self._admit(waiting, match, self._full(waiting, match, now), now)) is not None:
                return admitted
        try:
            return await self._wait(waiting, call, now)
        finally:
            facts.waited_s = self._clock.now() - arrived_at

    def is_freed(self, replica: Replica, now: float) -> bool:
        """Whether the next call can go after the load of this backend, and of no other, has fallen."""
        head = self.queue.head()
        if head.has_disconnected:
            return True
        its = [place for place in head.chooser.places if place.replica is replica]
        return bool(its) and any(self._has_room(place, head, look_up(head.demand, self._index), now) for place in its)

    def send_next(self, now: float) -> bool:
        """Send or refuse the next call of the queue; False if no place has room for it."""
        for call, match, full in self._next(now):
            if call.has_disconnected:
                self.queue.remove(call)
                return True
            try:
                admitted = self._admit(call, match, full, now)
            except UpstreamError as error:
                self.dequeue(call, error, now)
                return True
            if admitted is not None:
                self.dequeue(call, admitted, now)
                return True
        return False

    def _next(self, now: float) -> Iterator[tuple[QueuedCall, Match, list[Place]]]:
        """The candidates for the next turn, each with its match of cached prompts and the places without room for it.

        The first candidate is the one of the client's next few calls that saves the most cached tokens by going now.
        The second is the head of the queue, in case the first cannot go since its place is out of rotation.
        """
        head = self.queue.head()
        match = look_up(head.demand, self._index)
        full = self._full(head, match, now)
        may_wait = head.send_by - now >= _MIN_SLACK * (head.deadline - head.arrived_at)
        if may_wait and len(full) < len(head.chooser.places):
            candidates = self.queue.next_few(_MAX_REORDERED)
            if len(candidates) > 1:
                best = max(candidates, key=partial(self._gain, full, now))
                if best is not head:
                    match_of_best = look_up(best.demand, self._index)
                    yield best, match_of_best, self._full(best, match_of_best, now)
        yield head, match, full

    def _admit(self, waiting: QueuedCall, match: Match, full: list[Place], now: float) -> Admitted | None:
        """Begin the call at a place that is not in `full`; None if all are.

        Raises: Overloaded if the call would be late at every place with room; NoBackendAvailable.
        """
        chooser = waiting.chooser
        unsuitable = full.copy()
        if len(full) < len(chooser.places):
            why: Shed = "late"
            while (place := chooser.choose(unsuitable, match)) is not None:
                replica = place.counted
                if self._judge.is_in_time(replica, waiting, match, now):
                    if not self._judge.delays_streams(replica, waiting, match):
                        limit_s = waiting.deadline - waiting.arrived_at
                        return self._begin(place, waiting.call, match, waiting.client, limit_s, now)
                    why = "long"
                unsuitable.append(place)
            if len(unsuitable) > len(full):
                raise self.refusal(waiting, why, now)
        # `choose` is not called here: a round-robin balancer would count it as a turn.
        retry_in_s = chooser.retry_in_s()
        if retry_in_s is None or retry_in_s > 0:
            raise NoBackendAvailable(
                f'every backend of the route "{self._name}" is out of rotation', retry_after_s=retry_in_s
            )
        return None

    def refusal(self, waiting: QueuedCall, why: Shed, now: float) -> Overloaded:
        """Count a refused call; returns the error for its client, which says when to retry."""
        return self._refusals.refuse(waiting, why, now, first_token_s=self._first_token_s(waiting, now))

    def dequeue(self, waiting: QueuedCall, outcome: Admitted | UpstreamError, now: float) -> None:
        """Take a call out of the queue and give its task the outcome."""
        assert waiting.outcome is not None, "only a queued call leaves the queue"
        self.queue.remove(waiting)
        self._pace.note(waiting.demand.tokens, now)
        if isinstance(outcome, UpstreamError):
            waiting.outcome.set_exception(outcome)
        else:
            waiting.outcome.set_result(outcome)

    def is_calm(self) -> bool:
        """Whether the queue is empty."""
        return not self.queue

    def statistics(self) -> GateStatistics:
        """A snapshot."""
        queue, refusals = self.queue, self._refusals
        queue_s = self._pace.seconds_for(queue.tokens, self._clock.now(), default=0.0) if queue else 0.0
        shed = dict(refusals.counts)
        return GateStatistics(len(queue), queue.tokens, queue_s, shed, refusals.tokens, self._num_entered)

    def take_shed(self) -> Mapping[Shed, int]:
        """The refusals since the last time, for metrics."""
        return self._refusals.take()

    def _full(self, waiting: QueuedCall, match: Match, now: float) -> list[Place]:
        """The places without room for a call."""
        places = waiting.chooser.places
        return [place for place in places if not self._has_room(place, waiting, match, now)]

    def _has_room(self, place: Place, waiting: QueuedCall, match: Match, now: float) -> bool:
        if place.quota is not None and place.quota_wait_s(waiting.call) > 0:
            return False
        return self._judge.has_room(
            place.counted, waiting, match, now, yields=now < self._yields_until[waiting.priority]
        )

    def _gain(self, full: Collection[Place], now: float, waiting: QueuedCall) -> float:
        """How many cached tokens a call would lose if it did not go now; minus infinity if it cannot go.

        This is the difference between the best cache among the places with room for it and the best among the others.
        """
        match = look_up(waiting.demand, self._index)
        here, elsewhere = -inf, 0
        for place in waiting.chooser.places:
            replica = place.counted
            cached = waiting.demand.tokens - match.uncached(replica.slot)
            if place not in full and self._has_room(place, waiting, match, now):
                here = max(here, cached)
            else:
                elsewhere = max(elsewhere, cached)
        return here - elsewhere

    async def _wait(self, waiting: QueuedCall, call: Call, now: float) -> Admitted:
        waiting.send_by = min(
            self._judge.send_by(waiting.replicas, waiting, look_up(waiting.demand, self._index)), call.deadline
        )
        if waiting.send_by <= now:
            raise self.refusal(waiting, self.deadline_reason, now)
        quota_s = min((place.quota_wait_s(call) for place in waiting.chooser.places), default=0.0)
        if quota_s > waiting.send_by - now:
            refused = self.refusal(waiting, self.deadline_reason, now)
            refused.retry_after_s = max(refused.retry_after_s or 0.0, quota_s)
            raise refused
        self._make_room(waiting, now)
        outcome: Future[Admitted] = get_running_loop().create_future()
        waiting.outcome = outcome
        if not self.queue:
            self._pace.resume(now)
        self.queue.add(waiting)
        self._refusals.joined(waiting)
        self._on_join(self, waiting)
        try:
            return await outcome
        except BaseException:
            if not waiting.is_over:
                self.queue.remove(waiting)
            elif not outcome.cancelled() and outcome.exception() is None:
                # The client disconnected after the attempt had begun and before this task was resumed.
                outcome.result().give_up(call)
            raise

    def _make_room(self, waiting: QueuedCall, now: float) -> None:
        """Make room in a full queue, by refusing a call of a lower priority or of the client with the most calls.

        Raises: Overloaded if there is no such call.
        """
        queue, policy = self.queue, self._policy
        tokens = waiting.demand.tokens
        while len(queue) >= policy.max_waiting or queue.tokens + tokens > policy.max_waiting_tokens:
            if tokens > policy.max_waiting_tokens:
                raise self.refusal(waiting, "full", now)
            worst = queue.least_deserving()
            if worst.has_disconnected:
                queue.remove(worst)
                continue
            spares_more = queue.num_beside(worst) > queue.num_beside(waiting) + 1
            if worst.priority < waiting.priority or (worst.priority == waiting.priority and not spares_more):
                raise self.refusal(waiting, "full", now)
            self.dequeue(worst, self.refusal(worst, "full", now), now)

    def _begin(self, place: Place, call: Call, match: Match, client: str, limit_s: float, now: float) -> Admitted:
        place.reserve(call)
        attempt = place.counted.begin(match, now)
        self._counters.charge(client, match.demand.tokens, now)
        attempt.limit_s = limit_s
        attempt.on_output = partial(self._counters.charge, client, weight=self._output_weight)
        return Admitted(place, match, attempt)

    def _first_token_s(self, waiting: QueuedCall, now: float) -> float | None:
        """A lower bound of the call's time to first token, counted from its arrival, behind those who wait already."""
        match = look_up(waiting.demand, self._index)
        known = [
            replica.predict(waiting.demand.tokens, match.uncached(replica.slot))
            for replica in waiting.replicas
            if replica.model.doubt is None
        ]
        if not known:
            return None
        ahead = self.queue.tokens if waiting.outcome is None else 0
        ahead_s = self._pace.seconds_for(ahead, now, default=0.0) if ahead else 0.0
        return now - waiting.arrived_at + ahead_s + min(known)

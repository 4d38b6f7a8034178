"""One route's gate: a call goes on when a backend has room for it and can be in time; the pool asks it for a member.

Which backend takes a call is decided when it leaves, not when it comes: what it would have met is known only then.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Callable, Collection, Iterator, Mapping
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

_FEW = 8
"""Among how many of one client's calls the order may be changed for what is cached."""
_HURRY = 0.25
"""With less than this share of its limit left to wait, a call goes first whatever is cached."""

_REMEMBERED_S = 30.0
"""For so long after a call those of lower priority leave room for the next one."""
_LOWER = tuple(tuple(lower for lower in Priority if lower > priority) for priority in Priority)


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """A gate's queue now, how long it will take to be through, and what was turned away since the start."""

    waiting: int
    waiting_tokens: int
    drain_s: float
    shed: Mapping[Shed, int]
    shed_tokens: int
    entered: int


class Gate:
    """Lets calls in one at a time, in the order of their queue."""

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
    ) -> None:
        """`slo` is for calls that bring none.

        `on_join` is told of each that has to wait, and calls it up as soon as that is possible.
        """
        self.queue: AdmissionQueue[QueuedCall] = AdmissionQueue(counters)
        self._pace = QueuePace()
        self._refusals = Refusals(name, self.queue, self._pace)
        self._counters = counters
        self._name = name
        self._policy = policy
        self._slo = slo
        self._judge = AdmissionJudge(policy, slo)
        self._index = index
        self._on_join = on_join
        self._clock = clock
        self.why_it_leaves: Shed = "waited" if policy.on_overload == "queue" else "late"
        """What becomes of a call at its `leave_at`."""
        self._yields_until = [-inf for _ in Priority]
        """Until when calls of each priority leave room for those of a higher one, of which some came lately."""
        self._entered = 0
        self._client_of = CLIENT_OF[policy.fairness.by]
        self._output_weight = policy.fairness.output_weight

    def enter_nowait(self, call: Call, demand: Demand, chooser: Chooser) -> Admitted | None:
        """The member where the call would go if there were no gate, if it can be there well in time; else None.

        While nobody waits nobody is the worse for it, and it goes to where its beginning is cached. Unless calls of a
        higher priority come too: the next of them would find the backends filled up.
        """
        now = self._clock.now()
        self._entered += 1
        priority = call.priority
        for lower in _LOWER[priority]:
            self._yields_until[lower] = now + _REMEMBERED_S
        if self.queue.tokens or now < self._yields_until[priority]:
            return None
        waited_s = call.facts.waited_s or 0.0
        slo = call.slo or self._slo
        limit_s = slo.first_token_limit_s(demand.tokens)
        match = look_up(demand, self._index)
        full: tuple[Place, ...] = ()
        while (place := chooser.choose(full, match)) is not None:
            replica = place.counted
            if self._judge.can_hold(replica, demand.tokens, slo, now):
                if not self._judge.is_early(replica, match, limit_s - waited_s):
                    return None
                call.facts.waited_s = waited_s
                return self._let_in(place, match, self._client_of(call), limit_s, now)
            full = (*full, place)
        return None

    async def enter(self, call: Call, demand: Demand, chooser: Chooser) -> Admitted:
        """Wait for a member that can take the call.

        Raises: Overloaded, NoBackendAvailable.
        """
        now = self._clock.now()
        facts = call.facts
        # Who has waited at a gate already is due no later for it.
        arrived_at = now - (facts.waited_s or 0.0)
        slo = call.slo or self._slo
        client = self._client_of(call)
        waiting = QueuedCall(demand, slo, chooser, client=client, priority=call.priority, arrived_at=arrived_at)
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
        """Whether somebody can go now that this backend has come to have less to do, if nothing else has changed."""
        head = self.queue.head()
        if head.has_left:
            return True
        is_its = any(place.replica is replica for place in head.chooser.places)
        return is_its and self._has_room(replica, head, look_up(head.demand, self._index), now)

    def call_up(self, now: float) -> bool:
        """Send off, or turn away, one of those who wait; False where there is no room for whose turn it is."""
        for caller, match, full in self._next(now):
            if caller.has_left:
                self.queue.remove(caller)
                return True
            try:
                admitted = self._admit(caller, match, full, now)
            except UpstreamError as error:
                self.leave(caller, error, now)
                return True
            if admitted is not None:
                self.leave(caller, admitted, now)
                return True
        return False

    def _next(self, now: float) -> Iterator[tuple[QueuedCall, Match, list[Place]]]:
        """Whose turn it is, what is held of its prompt, and the places that have no room for it.

        Of the client's first few calls the one that gains most of what is cached by going now; if it cannot go after
        all, for what it would gain is out of rotation, the first.
        """
        head = self.queue.head()
        match = look_up(head.demand, self._index)
        full = self._full(head, match, now)
        if len(full) < len(head.chooser.places) and head.leave_at - now >= _HURRY * (head.deadline - head.arrived_at):
            few = self.queue.next_few(_FEW)
            if len(few) > 1:
                best = max(few, key=partial(self._gain, full, now))
                if best is not head:
                    match_of_best = look_up(best.demand, self._index)
                    yield best, match_of_best, self._full(best, match_of_best, now)
        yield head, match, full

    def _admit(self, waiting: QueuedCall, match: Match, full: list[Place], now: float) -> Admitted | None:
        """A place for a call, other than those that are `full`; None where all are.

        Raises: Overloaded where it is too late for every other one; NoBackendAvailable.
        """
        chooser = waiting.chooser
        closed = full.copy()
        if len(full) < len(chooser.places):
            why: Shed = "late"
            while (place := chooser.choose(closed, match)) is not None:
                replica = place.counted
                if self._judge.is_in_time(replica, waiting, match, now):
                    if not self._judge.spoils(replica, waiting, match):
                        return self._let_in(place, match, waiting.client, waiting.deadline - waiting.arrived_at, now)
                    why = "long"
                closed.append(place)
            if len(closed) > len(full):
                raise self.refusal(waiting, why, now)
        # Whom it would choose is not asked for: those who take turns would count that as one.
        retry_in_s = chooser.retry_in_s()
        if retry_in_s is None or retry_in_s > 0:
            raise NoBackendAvailable(
                f'every backend of the route "{self._name}" is out of rotation', retry_after_s=retry_in_s
            )
        return None

    def refusal(self, waiting: QueuedCall, why: Shed, now: float) -> Overloaded:
        """Counts a call that is turned away, and says when to come again."""
        return self._refusals.refuse(waiting, why, now, first_token_s=self._first_token_s(waiting, now))

    def leave(self, waiting: QueuedCall, outcome: Admitted | UpstreamError, now: float) -> None:
        """Take a call out of the queue that has not left, and tell it why."""
        assert waiting.outcome is not None, "who leaves a queue has stood there"
        self.queue.remove(waiting)
        self._pace.note(waiting.demand.tokens, now)
        if isinstance(outcome, UpstreamError):
            waiting.outcome.set_exception(outcome)
        else:
            waiting.outcome.set_result(outcome)

    def is_calm(self) -> bool:
        """Whether nobody waits."""
        return not self.queue

    def statistics(self) -> GateStatistics:
        """A snapshot."""
        queue, refusals = self.queue, self._refusals
        drain_s = self._pace.seconds_for(queue.tokens, self._clock.now(), default=0.0) if queue else 0.0
        return GateStatistics(len(queue), queue.tokens, drain_s, dict(refusals.counts), refusals.tokens, self._entered)

    def take_shed(self) -> Mapping[Shed, int]:
        """What was turned away since the last time, for metrics."""
        return self._refusals.take()

    def _full(self, waiting: QueuedCall, match: Match, now: float) -> list[Place]:
        """The places that have no room for a call."""
        places = waiting.chooser.places
        return [place for place in places if not self._has_room(place.counted, waiting, match, now)]

    def _has_room(self, replica: Replica, waiting: QueuedCall, match: Match, now: float) -> bool:
        return self._judge.has_room(replica, waiting, match, now, yields=now < self._yields_until[waiting.priority])

    def _gain(self, full: Collection[Place], now: float, waiting: QueuedCall) -> float:
        """How many tokens more of a prompt a member holds that has room for it than those that have none: what would be
        lost if it went to another one, or later. Minus infinity where it cannot go."""
        match = look_up(waiting.demand, self._index)
        here, elsewhere = -inf, 0
        for place in waiting.chooser.places:
            replica = place.counted
            cached = waiting.demand.tokens - match.uncached(replica.slot)
            if place not in full and self._has_room(replica, waiting, match, now):
                here = max(here, cached)
            else:
                elsewhere = max(elsewhere, cached)
        return here - elsewhere

    async def _wait(self, waiting: QueuedCall, call: Call, now: float) -> Admitted:
        waiting.leave_at = min(
            self._judge.leave_at(waiting.replicas, waiting, look_up(waiting.demand, self._index)), call.deadline
        )
        if waiting.leave_at <= now:
            raise self.refusal(waiting, self.why_it_leaves, now)
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
                # The client has left between being called up and going.
                outcome.result().attempt.end()
            raise

    def _make_room(self, waiting: QueuedCall, now: float) -> None:
        """Who has most waiting makes room for who has less, and a lower priority for a higher one.

        Raises: Overloaded where there is nobody to do so.
        """
        queue, policy = self.queue, self._policy
        tokens = waiting.demand.tokens
        while len(queue) >= policy.max_waiting or queue.tokens + tokens > policy.max_waiting_tokens:
            if tokens > policy.max_waiting_tokens:
                raise self.refusal(waiting, "full", now)
            worst = queue.least_deserving()
            if worst.has_left:
                queue.remove(worst)
                continue
            spares_more = queue.num_beside(worst) > queue.num_beside(waiting) + 1
            if worst.priority < waiting.priority or (worst.priority == waiting.priority and not spares_more):
                raise self.refusal(waiting, "full", now)
            self.leave(worst, self.refusal(worst, "full", now), now)

    def _let_in(self, place: Place, match: Match, client: str, limit_s: float, now: float) -> Admitted:
        attempt = place.counted.begin(match, now)
        self._counters.charge(client, match.demand.tokens, now)
        attempt.limit_s = limit_s
        attempt.on_output = partial(self._counters.charge, client, weight=self._output_weight)
        return Admitted(place, match, attempt)

    def _first_token_s(self, waiting: QueuedCall, now: float) -> float | None:
        """When its first token would come, from its arrival on: at the least, after those who wait already."""
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

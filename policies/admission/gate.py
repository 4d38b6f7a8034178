"""One route's gate: a call goes on when a backend has room for it and can be in time; the pool asks it for a member.

Which backend takes a call is decided when it leaves, not when it comes: what it would have met is known only then.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import attrgetter
from random import Random
from typing import Literal

from backends.clock import Clock
from backends.errors import NoBackendAvailable, Overloaded, UpstreamError
from backends.protocol import Call, Priority, Slo
from policies.admission.fairness import Counters
from policies.admission.judge import AdmissionJudge
from policies.admission.queue import AdmissionQueue, Waiting
from policies.admission.queue_pace import QueuePace
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

_CLIENTS: Mapping[str, Callable[[Call], str]] = {
    "key": attrgetter("key_id"),
    "tenant": attrgetter("tenant"),
    # A user is one of its tenant's: nobody shares another's turn by taking its name.
    "user": lambda call: f"{call.tenant}/{call.user}",
}
"""Whose turn a call takes, by what fairness goes by."""

Shed = Literal["late", "long", "full", "waited"]
"""Why a call was turned away: it could not be in time, others could not for its sake, too many wait, it has waited for
as long as it may."""


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """A gate's line now, how long it will take to be through, and what was turned away since the start."""

    waiting: int
    waiting_tokens: int
    drain_s: float
    shed: Mapping[Shed, int]
    shed_tokens: int
    entered: int


class QueuedCaller(Waiting):
    """A call that waits at a gate, and who tells its task where to go."""

    __slots__ = ("chooser", "outcome")

    def __init__(
        self, demand: Demand, slo: Slo, chooser: Chooser, *, client: str, priority: Priority, arrived_at: float
    ) -> None:
        super().__init__(demand, slo, client=client, priority=priority, arrived_at=arrived_at)
        self.chooser = chooser
        self.outcome: Future[Admitted] | None = None
        """None until it stands in the line."""

    @property
    def has_left(self) -> bool:
        """Its client is gone, and its task has not been told yet."""
        return self.outcome is not None and self.outcome.cancelled()


class Gate:
    """Lets calls in one at a time, in the order of their line."""

    def __init__(
        self,
        name: str,
        policy: AdmissionPolicy,
        slo: Slo,
        index: PrefixIndex,
        counters: Counters,
        *,
        on_join: Callable[[Gate, QueuedCaller], None],
        clock: Clock,
    ) -> None:
        """`slo` is for calls that bring none.

        `on_join` is told of each that has to wait, and calls it up as soon as that is possible.
        """
        self.line: AdmissionQueue[QueuedCaller] = AdmissionQueue(counters)
        self.drain = QueuePace()
        self._counters = counters
        self._name = name
        self._policy = policy
        self._slo = slo
        self._judge = AdmissionJudge(policy, slo)
        self._index = index
        self._on_join = on_join
        self._clock = clock
        self._random = Random()
        self._shed: Counter[Shed] = Counter()
        self._told: Counter[Shed] = Counter()
        self.why_it_leaves: Shed = "waited" if policy.on_overload == "queue" else "late"
        """What becomes of a call at its `leave_at`."""
        self._shed_tokens = 0
        self._all_gone_at = 0.0
        self._yields_until = [-inf for _ in Priority]
        """Until when calls of each priority leave room for those of a higher one, of which some came lately."""
        self._entered = 0
        self._client_of = _CLIENTS[policy.fairness.by]
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
        if self.line.tokens or now < self._yields_until[priority]:
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
        waiting = QueuedCaller(demand, slo, chooser, client=client, priority=call.priority, arrived_at=arrived_at)
        facts.waited_s = now - arrived_at
        if not self.line:
            match = look_up(demand, self._index)
            if (admitted := self._admit(waiting, match, self._full(waiting, match, now), now)) is not None:
                return admitted
        try:
            return await self._wait(waiting, call, now)
        finally:
            facts.waited_s = self._clock.now() - arrived_at

    def is_freed(self, replica: Replica, now: float) -> bool:
        """Whether somebody can go now that this backend has come to have less to do, if nothing else has changed."""
        head = self.line.head()
        if head.has_left:
            return True
        is_its = any(place.replica is replica for place in head.chooser.places)
        return is_its and self._has_room(replica, head, look_up(head.demand, self._index), now)

    def call_up(self, now: float) -> bool:
        """Send off, or turn away, one of those who wait; False where there is no room for whose turn it is."""
        for caller, match, full in self._next(now):
            if caller.has_left:
                self.line.remove(caller)
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

    def _next(self, now: float) -> Iterator[tuple[QueuedCaller, Match, list[Place]]]:
        """Whose turn it is, what is held of its prompt, and the places that have no room for it.

        Of the client's first few calls the one that gains most of what is cached by going now; if it cannot go after
        all, for what it would gain is out of rotation, the first.
        """
        head = self.line.head()
        match = look_up(head.demand, self._index)
        full = self._full(head, match, now)
        if len(full) < len(head.chooser.places) and head.leave_at - now >= _HURRY * (head.deadline - head.arrived_at):
            few = self.line.next_few(_FEW)
            if len(few) > 1:
                best = max(few, key=partial(self._gain, full, now))
                if best is not head:
                    match_of_best = look_up(best.demand, self._index)
                    yield best, match_of_best, self._full(best, match_of_best, now)
        yield head, match, full

    def _admit(self, waiting: QueuedCaller, match: Match, full: list[Place], now: float) -> Admitted | None:
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

    def refusal(self, waiting: QueuedCaller, why: Shed, now: float) -> Overloaded:
        """Counts a call that is turned away, and says when to come again: once those who wait now are through."""
        self._shed[why] += 1
        self._shed_tokens += waiting.demand.tokens
        if not self.line:
            self.drain.resume(now)
        limit_s = waiting.deadline - waiting.arrived_at
        own = waiting.demand.tokens if waiting.outcome is None else 0
        drained_s = self.drain.seconds_for(self.line.tokens + own, now, default=limit_s)
        if self.line:
            # Whoever waits now has left by then, one way or the other.
            drained_s = min(drained_s, max(self._all_gone_at - now, 0.0))
        said = {
            "late": f"has more to do than it can: the first token could not come within {limit_s:.3g} s",
            "long": "has streams that could not make up for the time that this prompt takes while others wait",
            "full": f"has {len(self.line)} calls waiting with {self.line.tokens} tokens, and no more may",
            "waited": f"has had no room for {now - waiting.arrived_at:.3g} s",
        }[why]
        return Overloaded(
            f'the route "{self._name}" {said}',
            retry_after_s=drained_s * self._random.uniform(1.0, 1.5),
            first_token_s=self._first_token_s(waiting, now),
        )

    def leave(self, waiting: QueuedCaller, outcome: Admitted | UpstreamError, now: float) -> None:
        """Take a call out of the line that has not left, and tell it why."""
        assert waiting.outcome is not None, "who leaves a line has stood there"
        self.line.remove(waiting)
        self.drain.note(waiting.demand.tokens, now)
        if isinstance(outcome, UpstreamError):
            waiting.outcome.set_exception(outcome)
        else:
            waiting.outcome.set_result(outcome)

    def is_calm(self) -> bool:
        """Whether nobody waits."""
        return not self.line

    def statistics(self) -> GateStatistics:
        """A snapshot."""
        line = self.line
        drain_s = self.drain.seconds_for(line.tokens, self._clock.now(), default=0.0) if line else 0.0
        return GateStatistics(len(line), line.tokens, drain_s, dict(self._shed), self._shed_tokens, self._entered)

    def take_shed(self) -> Mapping[Shed, int]:
        """What was turned away since the last time, for metrics."""
        before, self._told = self._told, Counter(self._shed)
        return self._told - before

    def _full(self, waiting: QueuedCaller, match: Match, now: float) -> list[Place]:
        """The places that have no room for a call."""
        places = waiting.chooser.places
        return [place for place in places if not self._has_room(place.counted, waiting, match, now)]

    def _has_room(self, replica: Replica, waiting: QueuedCaller, match: Match, now: float) -> bool:
        return self._judge.has_room(replica, waiting, match, now, yields=now < self._yields_until[waiting.priority])

    def _gain(self, full: Collection[Place], now: float, waiting: QueuedCaller) -> float:
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

    async def _wait(self, waiting: QueuedCaller, call: Call, now: float) -> Admitted:
        waiting.leave_at = min(
            self._judge.leave_at(_replicas(waiting), waiting, look_up(waiting.demand, self._index)), call.deadline
        )
        if waiting.leave_at <= now:
            raise self.refusal(waiting, self.why_it_leaves, now)
        self._make_room(waiting, now)
        outcome: Future[Admitted] = get_running_loop().create_future()
        waiting.outcome = outcome
        if not self.line:
            self.drain.resume(now)
        self.line.add(waiting)
        self._all_gone_at = max(self._all_gone_at, waiting.leave_at)
        self._on_join(self, waiting)
        try:
            return await outcome
        except BaseException:
            if not waiting.is_over:
                self.line.remove(waiting)
            elif not outcome.cancelled() and outcome.exception() is None:
                # The client has left between being called up and going.
                outcome.result().attempt.end()
            raise

    def _make_room(self, waiting: QueuedCaller, now: float) -> None:
        """Who has most waiting makes room for who has less, and a lower priority for a higher one.

        Raises: Overloaded where there is nobody to do so.
        """
        line, policy = self.line, self._policy
        tokens = waiting.demand.tokens
        while len(line) >= policy.max_waiting or line.tokens + tokens > policy.max_waiting_tokens:
            if tokens > policy.max_waiting_tokens:
                raise self.refusal(waiting, "full", now)
            worst = line.least_deserving()
            if worst.has_left:
                line.remove(worst)
                continue
            spares_more = line.num_beside(worst) > line.num_beside(waiting) + 1
            if worst.priority < waiting.priority or (worst.priority == waiting.priority and not spares_more):
                raise self.refusal(waiting, "full", now)
            self.leave(worst, self.refusal(worst, "full", now), now)

    def _let_in(self, place: Place, match: Match, client: str, limit_s: float, now: float) -> Admitted:
        attempt = place.counted.begin(match, now)
        self._counters.charge(client, match.demand.tokens, now)
        attempt.limit_s = limit_s
        attempt.on_output = partial(self._counters.charge, client, weight=self._output_weight)
        return Admitted(place, match, attempt)

    def _first_token_s(self, waiting: QueuedCaller, now: float) -> float | None:
        """When its first token would come, from its arrival on: at the least, after those who wait already."""
        match = look_up(waiting.demand, self._index)
        known = [
            replica.predict(waiting.demand.tokens, match.uncached(replica.slot))
            for replica in _replicas(waiting)
            if replica.model.doubt is None
        ]
        if not known:
            return None
        ahead = self.line.tokens if waiting.outcome is None else 0
        ahead_s = self.drain.seconds_for(ahead, now, default=0.0) if ahead else 0.0
        return now - waiting.arrived_at + ahead_s + min(known)


def _replicas(waiting: QueuedCaller) -> list[Replica]:
    """The backends that could ever take the call."""
    return [place.counted for place in waiting.chooser.places]

"""A route's pool: chooses a member for each attempt and retries where that is safe, all before the first byte.

Built by assembly, around backends that it does not own; sits just above them in a route's stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial, reduce
from operator import or_
from random import Random

import msgspec

from backends.clock import Clock
from backends.errors import NoBackendAvailable, UpstreamError
from backends.operations import Operation
from backends.protocol import Backend, Call, Capabilities, Reply, Statistics
from policies.pool.admission_port import AdmissionPort
from policies.pool.attempts.classify import Outcome
from policies.pool.attempts.first_content import wait_content
from policies.pool.attempts.hedge import Attempt, HedgeStatistics, Hedging
from policies.pool.attempts.patience import AttemptLimits
from policies.pool.attempts.retry import RetryBudget
from policies.pool.balance.balancers import Balancers
from policies.pool.balance.by_load import LoadBalancer
from policies.pool.balance.by_weight import Balancer, max_ejected
from policies.pool.health.blame import report_end, report_failure
from policies.pool.health.breaker import CircuitBreaker, weakly
from policies.pool.load.demand import Demand, prompt_cache_key
from policies.pool.load.in_flight import InFlightAttempt
from policies.pool.load.routing import Routing
from policies.pool.member import Member
from policies.pool.onward import RemainingAttempts, onward_of
from policies.pool.settings import CircuitBreakerPolicy
from policies.pool.tally import PoolTally, RetryStatistics
from policies.schema import FallbackOn, RetryPolicy


class Pool:
    """Sends each call to one of its members, and to another (or the same again) where the policy allows a retry.

    A reply below 400 is final as soon as its head is there, and where a call can go on, its first content; how its
    stream ends only informs the breaker.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[Member],
        *,
        retry: RetryPolicy,
        breaker: CircuitBreakerPolicy,
        clock: Clock,
        random: Random,
        routing: Routing | None = None,
        gate: AdmissionPort | None = None,
        hedging: Hedging | None = None,
        provider_cache: bool = False,
        falls_back_on: Collection[FallbackOn] = (),
        falls_back_to: Collection[str] = (),
        limits_first_token: bool = True,
    ) -> None:
        """`routing` is for who balances by load, or shares backends with who does; without it members take turns.

        `gate` says when a call may go, and to whom first; it and `hedging` need `routing`.
        With `provider_cache` members are told which prompts begin alike. `falls_back_on`: what sends the route's calls
        to the routes `falls_back_to`. With `limits_first_token` a call that can go on is not waited for as
        long as its timeouts say.
        """
        self._name = name
        self._gate = gate
        self._hedging = hedging
        self._provider_cache = provider_cache
        self._routing = routing
        self._members = tuple(members)
        self._labels = _labels(members)
        self._policy = retry
        num_in_rotation = sum(member.weight > 0 for member in members)
        self._onward = onward_of(retry, num_in_rotation, falls_back_on)
        self._leaves_the_silent = self._onward.leaves_the_silent
        self._holds_back = self._onward.holds_back or hedging is not None
        self._falls_back_to = frozenset(falls_back_to)
        self._limits = AttemptLimits(len(members), clock, retry, is_patient=not limits_first_token)
        self._clock = clock
        self._random = random
        self._budget = RetryBudget(retry.budget_percent, clock)
        # With fallbacks somebody is left though all members are out.
        most_percent = 100 if "error" in self._onward.falls_back_on else breaker.max_ejection_percent
        self._max_ejected = max_ejected(num_in_rotation, most_percent)
        may_eject = weakly(self._may_eject)
        self._breakers = tuple(CircuitBreaker(breaker, clock, may_eject, is_new=member.is_new) for member in members)
        self._balancers = Balancers(self._members, self._breakers, routing)
        self._sent = 0
        self._failed = 0
        self._retries = 0
        self._exhausted = 0
        self._over_budget = 0
        self._told = PoolTally({}, {})

    @property
    def name(self) -> str:
        """The route's name."""
        return self._name

    @property
    def has_routing(self) -> bool:
        """Whether its members are balanced by load, or counted for those that are."""
        return self._routing is not None

    @property
    def capabilities(self) -> Capabilities:
        """Every operation that some member answers, the smallest context where all are known, every header that some
        member reads.
        """
        all_of_them = [member.backend.capabilities for member in self._members]
        contexts = [each.max_context_tokens for each in all_of_them if each.max_context_tokens is not None]
        return Capabilities(
            operations=frozenset[Operation]().union(*(each.operations for each in all_of_them)),
            max_context_tokens=min(contexts) if len(contexts) == len(all_of_them) else None,
            headers=reduce(or_, (each.headers for each in all_of_them)),
        )

    async def open(self) -> None:
        """Nothing: members may be in several pools, so whoever built them opens them."""

    async def aclose(self) -> None:
        """Nothing, as with `open`."""

    def statistics(self) -> Statistics:
        """Calls taken, and calls that failed after every attempt. What is in flight is counted by the members."""
        return Statistics(sent=self._sent, failed=self._failed)

    def retry_statistics(self) -> RetryStatistics:
        """A snapshot of the retry counters."""
        return RetryStatistics(
            retries=self._retries, retries_exhausted=self._exhausted, retries_over_budget=self._over_budget
        )

    def hedge_statistics(self) -> HedgeStatistics:
        """A snapshot of the counters of hedging; all zero without it."""
        return self._hedging.statistics() if self._hedging is not None else HedgeStatistics()

    def take_tally(self) -> PoolTally:
        """What has happened since the last time, for metrics."""
        hedges = self.hedge_statistics()
        now = PoolTally(
            Counter(
                retries=self._retries,
                retries_over_budget=self._over_budget,
                hedges=hedges.sent,
                hedges_won=hedges.won,
                hedges_over_budget=hedges.over_budget,
                hedge_wasted_tokens=hedges.wasted_tokens,
            ),
            Counter({name: each.num_opened for name, each in zip(self._labels, self._breakers, strict=True)}),
        )
        before, self._told = self._told, now
        return PoolTally(
            Counter(now.counts) - Counter(before.counts), Counter(now.ejections) - Counter(before.ejections)
        )

    def breakers_of(self, backend: Backend) -> list[CircuitBreaker]:
        """Those of the members behind which that backend is, for who probes it."""
        return [
            breaker for member, breaker in zip(self._members, self._breakers, strict=True) if member.backend is backend
        ]

    def breaker_states(self) -> dict[str, str]:
        """Each member's breaker, by backend name; by `name:model` where the same backend is there more than once."""
        states = [breaker.snapshot().state.value for breaker in self._breakers]
        return dict(zip(self._labels, states, strict=True))

    async def send(self, call: Call) -> Reply:
        """Answer through one of the members.

        After the last attempt its outcome is final: an error reply is returned as it came, an error is raised.
        Raises: UpstreamError of the last attempt; NoBackendAvailable if every member is out of rotation.
        """
        self._sent += 1
        self._budget.add_call()
        balancer = self._balancers.of(call)
        demand = None if self._routing is None else self._routing.read(call)
        if self._provider_cache and (key := prompt_cache_key(call, demand)):
            call = msgspec.structs.replace(call, prompt_cache_key=key)
        trip = None
        if self._gate is not None and demand is not None:
            index, trip = self._gate.enter_nowait(call, demand, balancer) or await self._enter(call, demand, balancer)
        elif (first := balancer.choose((), demand)) is not None:
            index = first
        else:
            self._failed += 1
            raise NoBackendAvailable(
                f'every backend of the route "{self._name}" is out of rotation', retry_after_s=balancer.retry_in_s()
            )
        tried = [index]
        if self._hedging is None or demand is None:
            may_go_on = self._leaves_the_silent and self._may_go_on(call, tried)
            outcome = await self._attempt(index, call, demand, trip=trip, may_go_on=may_go_on)
        else:
            outcome = await self._attempt_hedged(tried, call, demand, trip)
        if isinstance(outcome, Reply) and outcome.status < 400:
            return outcome
        outcome = await self._retry(tried, call, demand, outcome)
        if isinstance(outcome, Reply):
            self._failed += outcome.status >= 400
            return outcome
        self._failed += 1
        try:
            raise outcome
        finally:
            # The error's traceback holds this frame; letting go of the error leaves no cycle behind.
            del outcome

    async def _enter(
        self, call: Call, demand: Demand, balancer: Balancer | LoadBalancer
    ) -> tuple[int, InFlightAttempt]:
        """The member that the gate says, once there is one."""
        assert self._gate is not None
        try:
            while True:
                index, trip = await self._gate.enter(call, demand, balancer)
                if self._breakers[index].is_available():
                    return index, trip
                # Called up a moment ago, and since then it has failed, or is being tried by another call.
                trip.end()
        except UpstreamError:
            self._failed += 1
            raise

    async def _attempt(
        self,
        index: int,
        call: Call,
        demand: Demand | None,
        failed: Outcome | None = None,
        *,
        trip: InFlightAttempt | None = None,
        may_go_on: bool = False,
    ) -> Outcome:
        """Ask one member, once `failed` is closed, and tell its breaker. An upstream's error is returned.

        `trip`: where the attempt has begun already. With `may_go_on` there is somebody else to ask: it gets no more
        than its share of the time.
        """
        replica = self._routing.replicas[index] if self._routing is not None else None
        member = self._members[index]
        breaker = self._breakers[index]
        facts = call.facts
        facts.attempts += 1
        facts.backend = member.backend.name
        whole = call
        if may_go_on:
            call = self._limits.limited(call, index, member.model)
        elif member.model is not None and member.model != call.model:
            call = msgspec.structs.replace(call, model=member.model)
        facts.upstream_model = call.model
        began_at = self._clock.now() if self._holds_back or may_go_on else 0.0
        ticket = breaker.begin()
        try:
            if isinstance(failed, Reply):
                await failed.aclose()
            if trip is None and replica is not None and demand is not None:
                trip = replica.begin(demand, self._clock.now())
            reply = await member.backend.send(call)
            if self._holds_back and reply.status < 400 and call.operation.traits.writes_text:
                left_s = began_at + call.timeouts.first_token_s - self._clock.now()
                await wait_content(reply, call, left_s)
        except UpstreamError as error:
            if trip is not None:
                trip.end()
            if may_go_on:
                error, says_something = self._limits.given_up(call, whole, index, error, began_at)
                if not says_something:
                    breaker.release(ticket)
                    return error
            report_failure(breaker, ticket, error)
            return error
        except BaseException:
            if trip is not None:
                trip.end()
            breaker.release(ticket)
            raise
        if trip is not None and replica is not None:
            replica.answered(trip, reply, call)
        if reply.status >= 400:
            report_failure(breaker, ticket, reply)
        elif reply.stream is None:
            breaker.succeed(ticket)
        else:
            if may_go_on:
                self._limits.was_in_time(index)
            reply.stream.on_end.append(partial(report_end, breaker, breaker.answering(ticket)))
        return reply

    def _may_go_on(self, call: Call, asked: Collection[int], *, has_more: bool = True) -> bool:
        """Whether somebody else could take over from the last of `asked`, should that stay silent.

        `has_more`: this pool may ask again.
        """
        if call.pinned:
            return False
        if "timeout" in self._onward.falls_back_on and not self._falls_back_to <= (call.facts.asked_routes or set()):
            return True
        if has_more and self._onward.asks_others_on_silence:
            for index, member in enumerate(self._members):
                if index not in asked and member.weight > 0 and self._breakers[index].is_available():
                    return True
        return False

    async def _attempt_hedged(
        self, tried: list[int], call: Call, demand: Demand, trip: InFlightAttempt | None
    ) -> Outcome:
        """Ask the member in `tried`, and where it is late another one, which is added there."""
        assert self._hedging is not None
        assert self._routing is not None
        index = tried[0]
        may_go_on = self._may_go_on(call, tried)
        first: Attempt = partial(self._attempt, index, call, demand, trip=trip, may_go_on=may_go_on)
        expected_s = self._routing.replicas[index].expected_s(demand, trip)
        if expected_s is None or self._hedging.lateness(call) is None:
            return await first()
        self._hedging.earn()

        def second(hedge: Call) -> Attempt | None:
            other = self._balancers.of(call).choose(tried, demand)
            if other is None:
                return None
            tried.append(other)
            return partial(self._attempt, other, hedge, demand)

        return await self._hedging.ask(call, expected_s, first, second, tokens=demand.tokens)

    async def _retry(self, tried: list[int], call: Call, demand: Demand | None, outcome: Outcome) -> Outcome:
        """Further attempts after `outcome` of the first of `tried`, as far as policy, budget and deadline allow."""
        again = RemainingAttempts(self._onward, self._policy, call.operation)
        index = tried[0]
        ready_at = dict.fromkeys(tried[1:], self._clock.now())
        while (pause_s := again.pause_s(outcome, self._clock, self._random)) is not None:
            now = self._clock.now()
            ready_at[index] = now + pause_s
            following = self._choose_again(call, demand, ready_at)
            if following is None or (start_at := ready_at.get(following, now)) >= call.deadline:
                return outcome
            if not again.may_wait(start_at - now):
                return outcome
            if not self._budget.spend_nowait():
                self._over_budget += 1
                return outcome
            if start_at > now:
                await self._sleep(start_at - now, outcome)
                if not self._breakers[following].is_available():
                    return outcome
            self._retries += 1
            index = following
            may_go_on = self._may_go_on(call, (*ready_at, following), has_more=again.has_more)
            outcome = await self._attempt(index, call, demand, outcome, may_go_on=may_go_on)
        self._exhausted += again.is_exhausted
        return outcome

    def _choose_again(self, call: Call, demand: Demand | None, ready_at: dict[int, float]) -> int | None:
        """A member that this call has not tried, else the one that is ready first.

        Only the member that failed needs the pause: it, and not the others, is down or full.
        """
        untried = self._balancers.of(call).choose(ready_at, demand)
        if untried is not None:
            return untried
        available = [index for index in ready_at if self._breakers[index].is_available()]
        return min(available, key=ready_at.__getitem__, default=None)

    async def _sleep(self, seconds: float, outcome: Outcome) -> None:
        """Wait before a retry. The failed reply stays open until the retry is certain, so cancellation closes it."""
        try:
            await self._clock.sleep(seconds)
        except BaseException:
            if isinstance(outcome, Reply):
                await outcome.aclose()
            raise

    def _may_eject(self) -> bool:
        return sum(not breaker.is_closed for breaker in self._breakers) < self._max_ejected


def _labels(members: Sequence[Member]) -> list[str]:
    places = Counter(member.backend.name for member in members)
    return [
        member.backend.name if places[member.backend.name] == 1 else f"{member.backend.name}:{member.model}"
        for member in members
    ]

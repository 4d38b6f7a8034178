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
from backends.errors import UpstreamError
from backends.operations import Operation
from backends.protocol import Backend, Call, Capabilities, Reply, Statistics
from policies.acting import acts
from policies.pool.admission_port import AdmissionPort, Admitted
from policies.pool.attempts.attempt import Attempts
from policies.pool.attempts.classify import Outcome
from policies.pool.attempts.hedge import HedgeStatistics, Hedging, StartAttempt
from policies.pool.attempts.patience import AttemptLimits, Patience
from policies.pool.attempts.retry import RetryBudget
from policies.pool.attempts.settings import FallbackOn, RetryPolicy
from policies.pool.balance.balancers import Balancers
from policies.pool.balance.by_load import LoadBalancer
from policies.pool.balance.by_weight import Balancer, max_ejected
from policies.pool.health.breaker import CircuitBreaker, weakly
from policies.pool.load.demand import Demand, prompt_cache_key
from policies.pool.load.in_flight import InFlightAttempt
from policies.pool.load.match import Match
from policies.pool.load.routing import Routing
from policies.pool.member import Member
from policies.pool.onward import RemainingAttempts, onward_of
from policies.pool.place import Place
from policies.pool.quota_room import QuotaRoom, quota_of
from policies.pool.settings import CircuitBreakerPolicy
from policies.pool.tally import PoolTally, RetryStatistics
from policies.prices.price import Price
from policies.prices.source import PriceSource, set_prices


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
        self._policy = retry
        num_in_rotation = sum(member.weight > 0 for member in members)
        self._onward = onward_of(retry, num_in_rotation, falls_back_on)
        self._leaves_the_silent = self._onward.leaves_the_silent
        self._asks_others_on_silence = self._onward.asks_others_on_silence
        self._falls_back_to = frozenset(falls_back_to)
        limits = AttemptLimits(clock, retry, is_patient=not limits_first_token)
        self._attempts = Attempts(clock, limits, holds_back=self._onward.holds_back or hedging is not None)
        self._clock = clock
        self._random = random
        self._budget = RetryBudget(retry.budget_percent, clock)
        # With fallbacks somebody is left though all members are out.
        most_percent = 100 if "error" in self._onward.falls_back_on else breaker.max_ejection_percent
        self._max_ejected = max_ejected(num_in_rotation, most_percent)
        may_eject = weakly(self._may_eject)
        self._places = tuple(
            Place(
                member,
                label,
                CircuitBreaker(breaker, clock, may_eject, is_new=member.is_new),
                Patience(),
                routing.replicas[number] if routing is not None else None,
                quota_of(member.backend),
            )
            for number, (member, label) in enumerate(zip(members, _labels(members), strict=True))
        )
        self._set_prices = set_prices(self.price_sources)
        self._quotas = QuotaRoom(name, self._places)
        self._balancers = Balancers(self._places, routing)
        self._sent = 0
        self._failed = 0
        self._retries = 0
        self._exhausted = 0
        self._over_budget = 0
        self._last_tally = PoolTally({}, {})

    @property
    def name(self) -> str:
        """The route's name."""
        return self._name

    @property
    def has_routing(self) -> bool:
        """Whether its members are balanced by load, or counted for those that are."""
        return self._routing is not None

    @property
    def price_sources(self) -> tuple[PriceSource | None, ...]:
        """Who says what its members take, in their order."""
        return tuple(place.member.prices for place in self._places)

    def prices_of(self, model: str) -> tuple[Price | None, ...]:
        """What its members take for a call that asks for that model; None for those of whom nobody knows."""
        if self._set_prices is not None:
            return self._set_prices
        return tuple([place.member.price_of(model) for place in self._places])

    @property
    def capabilities(self) -> Capabilities:
        """Every operation that some member answers, the smallest context where all are known, every header that some
        member reads.
        """
        all_of_them = [place.member.backend.capabilities for place in self._places]
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
            Counter({place.label: place.breaker.num_opened for place in self._places}),
        )
        before, self._last_tally = self._last_tally, now
        return PoolTally(
            Counter(now.counts) - Counter(before.counts), Counter(now.ejections) - Counter(before.ejections)
        )

    def breakers_of(self, backend: Backend) -> list[CircuitBreaker]:
        """Those of the members behind which that backend is, for who probes it."""
        return [place.breaker for place in self._places if place.member.backend is backend]

    def breaker_states(self) -> dict[str, str]:
        """Each member's breaker, by backend name; by `name:model` where the same backend is there more than once."""
        return {place.label: place.breaker.snapshot().state.value for place in self._places}

    async def send(self, call: Call) -> Reply:
        """Answer through one of the members.

        After the last attempt its outcome is final: an error reply is returned as it came, an error is raised.
        Raises: UpstreamError of the last attempt; NoBackendAvailable if every member is out of rotation,
        UpstreamExhausted if all others have nothing left of their quotas.
        """
        self._sent += 1
        self._budget.add_call()
        balancer = self._balancers.of(call)
        demand = None if self._routing is None else self._routing.read(call)
        if self._provider_cache and (key := prompt_cache_key(call, demand)):
            call = msgspec.structs.replace(call, prompt_cache_key=key)
        counted: InFlightAttempt | None = None
        match: Match | None
        if self._gate is not None and demand is not None:
            admitted = self._gate.enter_nowait(call, demand, balancer) or await self._enter(call, demand, balancer)
            place, match, counted = admitted
        else:
            match = self._look_up(demand)
            used_up = self._quotas.used_up(call) if self._quotas.limited else ()
            if (first := balancer.choose(used_up, match)) is None:
                self._failed += 1
                raise self._quotas.refusal(call, used_up, balancer)
            place = first
        hedged: dict[Place, Outcome] = {}
        if self._hedging is None or match is None:
            may_go_on = self._leaves_the_silent and self._may_go_on(call, (place,))
            outcome = await self._attempts.make(place, call, match, counted=counted, may_go_on=may_go_on)
        else:
            outcome = await self._attempt_hedged(place, hedged, call, match, counted)
        if isinstance(outcome, Reply) and outcome.status < 400:
            return outcome
        outcome = await self._retry(place, hedged, call, demand, outcome)
        if isinstance(outcome, Reply):
            self._failed += outcome.status >= 400
            return outcome
        self._failed += 1
        try:
            raise outcome
        finally:
            # The error's traceback holds this frame; letting go of the error leaves no cycle behind.
            del outcome

    def _look_up(self, demand: Demand | None) -> Match | None:
        """Who holds how much of a prompt now, for one decision; None where calls are not counted."""
        return self._routing.match(demand) if self._routing is not None and demand is not None else None

    async def _enter(self, call: Call, demand: Demand, balancer: Balancer | LoadBalancer) -> Admitted:
        """Where the gate lets the call in, once there is room."""
        assert self._gate is not None
        try:
            while True:
                admitted = await self._gate.enter(call, demand, balancer)
                if admitted.place.breaker.is_available():
                    return admitted
                # Called up a moment ago, and since then it has failed, or is being tried by another call.
                admitted.give_up(call)
        except UpstreamError:
            self._failed += 1
            raise

    def _may_go_on(self, call: Call, asked: Collection[Place], *, has_more: bool = True) -> bool:
        """Whether somebody else could take over from the last of `asked`, should that stay silent.

        `has_more`: this pool may ask again.
        """
        if call.pinned:
            return False
        falls_back = "timeout" in self._onward.falls_back_on and not acts(call)
        if falls_back and not self._falls_back_to <= (call.facts.asked_routes or set()):
            return True
        if has_more and self._asks_others_on_silence and "first_token_timeout" in self._onward.again_on(call):
            for place in self._places:
                if place not in asked and place.member.weight > 0 and place.breaker.is_available():
                    return True
        return False

    async def _attempt_hedged(
        self, place: Place, hedged: dict[Place, Outcome], call: Call, match: Match, counted: InFlightAttempt | None
    ) -> Outcome:
        """Ask that member, and where it is late another one, whose outcome goes to `hedged`."""
        assert self._hedging is not None
        demand = match.demand
        may_go_on = self._may_go_on(call, (place,))
        first: StartAttempt = partial(self._attempts.make, place, call, match, counted=counted, may_go_on=may_go_on)
        expected_s = place.counted.expected_s(match, counted)
        if expected_s is None or self._hedging.lateness(call) is None:
            return await first()
        self._hedging.earn()

        def second(hedge: Call) -> StartAttempt | None:
            match = self._look_up(demand)
            other = self._balancers.of(call).choose([place, *self._quotas.used_up(call)], match)
            if other is None:
                return None

            async def ask() -> Outcome:
                hedged[other] = outcome = await self._attempts.make(other, hedge, match)
                return outcome

            return ask

        return await self._hedging.ask(call, expected_s, first, second, tokens=demand.tokens)

    async def _retry(
        self, place: Place, hedged: dict[Place, Outcome], call: Call, demand: Demand | None, outcome: Outcome
    ) -> Outcome:
        """Further attempts after `outcome` of that member, and those in `hedged`, as far as policy, budget and deadline
        allow.
        """
        again = RemainingAttempts(self._onward, self._policy, call)
        failed_at = self._clock.now()
        ready_at = {
            other: failed_at + again.rest_s(its_own, 0, self._clock, self._random) for other, its_own in hedged.items()
        }
        while (pause_s := again.pause_s(outcome, self._clock, self._random)) is not None:
            now = self._clock.now()
            ready_at[place] = now + pause_s
            following = self._choose_again(call, self._look_up(demand), ready_at)
            if following is None or (start_at := ready_at.get(following, now)) >= call.deadline:
                return outcome
            if not again.may_wait(start_at - now):
                return outcome
            if not self._budget.spend_nowait():
                self._over_budget += 1
                return outcome
            if start_at > now:
                await self._sleep(start_at - now, outcome)
                if not following.breaker.is_available():
                    return outcome
            self._retries += 1
            place = following
            may_go_on = self._may_go_on(call, (*ready_at, place), has_more=again.has_more)
            outcome = await self._attempts.make(place, call, self._look_up(demand), outcome, may_go_on=may_go_on)
        self._exhausted += again.is_exhausted
        return outcome

    def _choose_again(self, call: Call, match: Match | None, ready_at: dict[Place, float]) -> Place | None:
        """A place that this call has not tried, else the one that is ready first.

        Only the member that failed needs the pause: it, and not the others, is down or full.
        """
        untried = self._balancers.of(call).choose([*ready_at, *self._quotas.used_up(call)], match)
        if untried is not None:
            return untried
        available = [place for place in ready_at if place.breaker.is_available()]
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
        return sum(not place.breaker.is_closed for place in self._places) < self._max_ejected


def _labels(members: Sequence[Member]) -> list[str]:
    places = Counter(member.backend.name for member in members)
    return [
        member.backend.name if places[member.backend.name] == 1 else f"{member.backend.name}:{member.model}"
        for member in members
    ]

"""The ways of choosing among members: what each prefers, and what all of them hold to."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pool.balance.by_load import LoadBalancer
from policies.pool.balance.pick import (
    ConsistentHash,
    Latency,
    LeastCost,
    LeastRequest,
    LeastTokens,
    Picker,
    PickerCounters,
    PowerOfTwo,
    PredictedCost,
)
from policies.pool.balance.share import Share
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.load.demand import Demand
from policies.pool.load.in_flight import InFlightAttempt
from policies.pool.load.latency_model import features
from policies.pool.load.match import Match, look_up
from policies.pool.load.replica import Replica
from policies.pool.prompts.prefix_index import PrefixIndex
from policies.pool.settings import CircuitBreakerPolicy
from policies.prices.price import Price, Tariff, named_price, per_token
from tests.support.policy.places import Numbered, make_place
from tests.support.policy.pool import StoppedClock

WAYS = ["least_request", "p2c", "least_tokens", "consistent_hash", "latency", "cost", "predicted_cost"]


def _price(input: int, output: int, cached_input: int) -> Price:
    return named_price("", Tariff(per_token(input, output, cached_input)))


class Bench:
    """Members, their replicas and breakers, and a balancer of one way over them."""

    def __init__(
        self,
        way: str,
        weights: list[int],
        *,
        priorities: list[int] | None = None,
        prices: list[Price] | None = None,
        known: float | None = None,
    ) -> None:
        clock = StoppedClock()
        policy = CircuitBreakerPolicy.model_validate({"consecutive_failures": 1})
        self.index = PrefixIndex()
        self.counters = PickerCounters()
        self.replicas = [Replica(f"r{place}", 100_000, self.index, clock) for place in range(len(weights))]
        self.breakers = [CircuitBreaker(policy, clock) for _ in weights]
        random = Random(1)
        pickers: dict[str, Picker] = {
            "least_request": LeastRequest(random),
            "p2c": PowerOfTwo(random),
            "least_tokens": LeastTokens(random),
            "consistent_hash": ConsistentHash(),
            "latency": Latency(random, self.counters),
            "cost": LeastCost(random),
            "predicted_cost": PredictedCost(random, self.counters),
        }
        places = [
            make_place(number, breaker, replica=replica, price=price)
            for number, (breaker, replica, price) in enumerate(
                zip(self.breakers, self.replicas, prices or [_price(0, 0, 0)] * len(weights), strict=True)
            )
        ]
        shares = [
            Share(place, weight, priority)
            for place, weight, priority in zip(places, weights, priorities or [0] * len(weights), strict=True)
        ]
        self.balancer = Numbered(places, LoadBalancer(shares, pickers[way]))
        if known is not None:
            for replica in self.replicas:
                self.teach(replica, known)

    def teach(self, replica: Replica, speed: float) -> None:
        """Show 60 first tokens of a replica that takes `speed` times 25 us a token."""
        random = Random(3)
        for _ in range(60):
            tokens = random.randint(100, 20_000)
            attempt = replica.begin(Match(Demand(tokens, is_stream=True)), 0.0)
            replica.first_token(attempt, 0.02 + speed * 25e-6 * tokens)
            attempt.end()

    def send(self, tokens: int = 1000, blocks: list[int] | None = None, session: bytes = b"", key: bytes = b"") -> int:
        """Choose for a prompt and send it there; returns the member."""
        return self.send_attempt(tokens, blocks, session, key)[0]

    def send_attempt(
        self, tokens: int = 1000, blocks: list[int] | None = None, session: bytes = b"", key: bytes = b""
    ) -> tuple[int, InFlightAttempt]:
        """The same, with the attempt."""
        blocks = blocks or []
        ends = [64 * (place + 1) for place in range(len(blocks))]
        demand = Demand(tokens, is_stream=True, blocks=blocks, ends=ends, session=session, key=key)
        match = look_up(demand, self.index)
        chosen = self.balancer.choose((), match)
        assert chosen is not None
        return chosen, self.replicas[chosen].begin(match, 0.0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("known", [None, 1.0], ids=["unknown", "known"])
@given(
    members=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), min_size=1, max_size=6),
    tried=st.sets(st.integers(0, 5)),
    in_hand=st.lists(st.integers(0, 5), max_size=20),
)
def test_load_balancer_asks_the_lowest_priority_that_is_available(
    way: str, known: float | None, members: list[tuple[int, int, bool]], tried: set[int], in_hand: list[int]
) -> None:
    """Whatever the way and the load: never weight 0, an open breaker or one tried; the next priority only in need."""
    weights, priorities = [weight for weight, _, _ in members], [priority for _, priority, _ in members]
    bench = Bench(way, weights, priorities=priorities)
    if known is not None:
        for replica in bench.replicas:
            replica.model.load({**replica.model.dump(), "observations": 100})
    for place in in_hand:
        bench.replicas[place % len(members)].begin(Match(Demand(500, is_stream=True)), 0.0)
    for breaker, (_, _, is_out) in zip(bench.breakers, members, strict=True):
        if is_out:
            breaker.fail(breaker.begin())
    able = [
        (priority, place)
        for place, (weight, priority, is_out) in enumerate(members)
        if weight and not is_out and place not in tried
    ]
    chosen = bench.balancer.choose(tried, Match(Demand(100, is_stream=True, session=b"s")))

    assert chosen in {place for priority, place in able if priority == min(able)[0]} if able else chosen is None


def test_load_balancer_says_when_it_can_choose_again() -> None:
    """The soonest of the breakers; None where nobody ever answers."""
    bench = Bench("least_request", [1, 1])
    for breaker in bench.breakers:
        breaker.fail(breaker.begin())

    assert bench.balancer.retry_in_s() == 10.0
    assert Bench("least_request", [0, 0]).balancer.retry_in_s() is None


@pytest.mark.parametrize("way", ["least_request", "least_tokens"])
def test_pick_least_keeps_shares_by_weight(way: str) -> None:
    """Three times the weight, three times what is in hand."""
    bench = Bench(way, [3, 1])
    sent = Counter(bench.send() for _ in range(400))

    assert sent[0] == pytest.approx(300, abs=6)


def test_pick_least_tokens_counts_tokens_and_not_requests() -> None:
    """One long prompt weighs as much as many short ones."""
    bench = Bench("least_tokens", [1, 1])
    first = bench.send(10_000)
    others = {bench.send(100) for _ in range(50)}

    assert others == {1 - first}


def test_pick_two_choices_prefers_the_emptier_of_them() -> None:
    """The fullest of three is never chosen while the others are emptier; two of a kind share."""
    bench = Bench("p2c", [1, 1, 1])
    for _ in range(10):
        bench.replicas[0].begin(Match(Demand(1, is_stream=True)), 0.0)
    sent = Counter(bench.send() for _ in range(10))

    assert sent[0] == 0
    assert min(sent[1], sent[2]) >= 2


def test_pick_consistent_hash_stays_put_and_is_bounded() -> None:
    """The same beginning goes to the same member, but never more than 1.25 times its share is in flight there."""
    bench = Bench("consistent_hash", [1, 1, 1, 1])
    attempts = [bench.send_attempt(key=b"same") for _ in range(8)]
    for place in range(4):
        assert bench.replicas[place].in_flight.requests <= 3
    for _, attempt in attempts:
        attempt.end()
    alone = set()
    for _ in range(8):
        chosen, attempt = bench.send_attempt(key=b"same")
        attempt.end()
        alone.add(chosen)

    assert alone == {attempts[0][0]}


def test_pick_consistent_hash_spreads_beginnings_and_moves_few_when_one_goes() -> None:
    """Prompts spread evenly; when a member is out, only its own prompts move."""
    bench = Bench("consistent_hash", [1, 1, 1, 1])

    def places() -> list[int | None]:
        return [bench.balancer.choose((), Match(Demand(1, is_stream=True, key=b"%d" % key))) for key in range(400)]

    before = places()
    bench.breakers[2].fail(bench.breakers[2].begin())
    after = places()

    assert min(Counter(before).values()) > 60
    assert {old for old, new in zip(before, after, strict=True) if old != new} == {2}


def test_pick_cost_takes_the_cheapest_for_this_call() -> None:
    """Long prompts go where reading is cheap, short ones where writing is; equals share by load."""
    prices = [_price(1, 10, 1), _price(10, 1, 10), _price(10, 1, 10)]
    bench = Bench("cost", [1, 1, 1], prices=prices)

    assert {bench.send(10_000) for _ in range(5)} == {0}
    assert {bench.send(10) for _ in range(6)} == {1, 2}


def test_pick_cost_takes_off_what_a_member_has_kept() -> None:
    """The dearer one is cheaper for who comes back to it, as long as enough of the prompt lies there."""
    bench = Bench("cost", [1, 1], prices=[_price(10, 10, 10), _price(20, 10, 1)])
    blocks = list(range(100, 110))
    demand = Demand(640, is_stream=True, blocks=blocks, ends=[64 * (place + 1) for place in range(10)])
    before = bench.send(640, blocks)
    bench.replicas[1].begin(Match(demand), 0.0).end()

    assert (before, bench.send(640, blocks)) == (0, 1)
    assert bench.send(6400, blocks) == 0


def test_pick_predicted_cost_returns_to_where_the_beginning_is() -> None:
    """A prompt's next turn goes to the replica that holds it, even if that has a little more to do."""
    bench = Bench("predicted_cost", [1] * 4, known=1.0)
    blocks = list(range(100, 160))
    first, attempt = bench.send_attempt(4000, blocks)
    attempt.end()
    others = [bench.send_attempt(300) for _ in range(2)]
    again = bench.send(4200, [*blocks, 7, 8])

    assert again == first
    assert len(others) == 2


def test_pick_predicted_cost_leaves_a_full_replica_although_it_holds_the_beginning() -> None:
    """Waiting behind a queue costs more than computing anew."""
    bench = Bench("predicted_cost", [1] * 2, known=1.0)
    blocks = list(range(60))
    first, attempt = bench.send_attempt(4000, blocks)
    attempt.end()
    bench.replicas[first].begin(Match(Demand(100_000, is_stream=True)), 0.0)

    assert bench.send(4000, blocks) == 1 - first


def test_pick_predicted_cost_sends_a_slow_backend_less() -> None:
    """Each backend has a model of its own: one of half the speed gets fewer tokens."""
    bench = Bench("predicted_cost", [1, 1])
    bench.teach(bench.replicas[0], 4.0)
    bench.teach(bench.replicas[1], 1.0)
    sent = Counter(bench.send(1000) for _ in range(60))

    assert 0 < sent[0] < sent[1] / 2


def test_pick_predicted_cost_degraded_backend_counts_eight_times() -> None:
    """New prompts go to a busy other one, what it holds still comes; where the other has far too much, all comes."""
    bench = Bench("predicted_cost", [1, 1], known=1)
    sick, well = bench.replicas
    held, new = Demand(1000, is_stream=True, blocks=[1, 2], ends=[500, 990]), Demand(1000, is_stream=True)
    sick.begin(Match(held), 0.0).end()
    for _ in range(5):
        sick.model.observe(features(0, 1000, 1000, 0, 0), 60.0)

    def choose(demand: Demand) -> int | None:
        return bench.balancer.choose((), look_up(demand, bench.index))

    assert sick.model.is_degraded
    well.begin(Match(Demand(32_000, is_stream=True)), 0.0)
    assert (choose(new), choose(held)) == (1, 0)
    well.begin(Match(Demand(30_000, is_stream=True)), 0.0)
    assert choose(new) == 0


def test_pick_predicted_cost_unknown_backends_are_chosen_by_tokens_and_counted() -> None:
    """Until every candidate is known nobody's prediction counts, and the counters say why."""
    bench = Bench("predicted_cost", [1, 1])
    bench.teach(bench.replicas[0], 1.0)
    bench.send(10_000)
    sent = Counter(bench.send(100) for _ in range(20))
    for _ in range(8):
        bench.replicas[1].model.observe(features(0, 1, 1, 0, 0), -1.0)
    bench.send(100)

    assert len(sent) == 1
    assert bench.counters.take() == {"unseen": 21, "nonsense": 1}
    assert bench.counters.take() == {}


def test_pick_latency_prefers_the_quicker_backend_and_knows_when_it_does_not_know() -> None:
    """The shortest predicted answer; before that the fewest calls."""
    bench = Bench("latency", [1, 1])
    blind = {bench.send_attempt()[0] for _ in range(2)}
    bench.teach(bench.replicas[0], 1.0)
    bench.teach(bench.replicas[1], 8.0)
    sent = []
    for _ in range(10):
        chosen, attempt = bench.send_attempt(2000)
        attempt.end()
        sent.append(chosen)

    assert blind == {0, 1}
    assert set(sent) == {0}


def test_pick_member_passed_over_for_long_gets_a_call_while_idle() -> None:
    """A backend that was slow once is tried again, now and then: else nobody would learn that it is fast."""
    bench = Bench("predicted_cost", [1, 1])
    bench.teach(bench.replicas[0], 1.0)
    bench.teach(bench.replicas[1], 50.0)
    sent = []
    for _ in range(1000):
        chosen, attempt = bench.send_attempt(2000)
        attempt.end()
        sent.append(chosen)

    assert 3 <= sent.count(1) <= 4


def test_pick_session_breaks_ties_only() -> None:
    """Among equals a session has one member, whichever; a difference beats it."""
    bench = Bench("least_request", [1] * 4)

    def alone(session: bytes) -> int:
        chosen, attempt = bench.send_attempt(session=session)
        attempt.end()
        return chosen

    kept = {session: {alone(session) for _ in range(5)} for session in (b"a", b"b", b"c", b"d", b"e", b"f")}
    bench.replicas[next(iter(kept[b"a"]))].begin(Match(Demand(1, is_stream=True)), 0.0)

    assert all(len(members) == 1 for members in kept.values())
    assert len(set().union(*kept.values())) > 1
    assert alone(b"a") not in kept[b"a"]


def test_pick_among_very_many_looks_at_the_deepest_and_some_others() -> None:
    """A hundred backends cost no more than eight: those that hold the prompt are among them."""
    bench = Bench("predicted_cost", [1] * 100, known=1.0)
    blocks = list(range(60))
    demand = Demand(4000, is_stream=True, blocks=blocks, ends=[64 * (place + 1) for place in range(60)])
    bench.replicas[77].begin(Match(demand), 0.0).end()

    assert bench.send(4000, blocks) == 77


@pytest.mark.parametrize("way", ["p2c", "predicted_cost"])
@pytest.mark.parametrize("known", [None, 1.0], ids=["unknown", "known"])
def test_pick_among_very_many_spreads_calls_over_all(way: str, known: float | None) -> None:
    """Whoever has something in hand is avoided, though only a few are looked at."""
    bench = Bench(way, [1] * 300, known=known)
    sent = Counter(bench.send(1000) for _ in range(600))

    assert len(sent) > 240
    assert max(sent.values()) <= 8


@pytest.mark.parametrize("way", ["p2c", "predicted_cost"])
def test_pick_among_very_many_never_takes_who_is_out_or_tried(way: str) -> None:
    """Also where nearly all are out, so that a look at a few finds nobody."""
    bench = Bench(way, [1] * 300, known=1.0)
    for breaker in bench.breakers[3:]:
        breaker.fail(breaker.begin())
    match = Match(Demand(1000, is_stream=True))

    assert {bench.balancer.choose({0}, match) for _ in range(40)} == {1, 2}
    assert bench.balancer.choose({0, 1, 2}, match) is None


def test_pick_among_very_many_looks_at_holders_that_may_be_taken() -> None:
    """Those that hold the prompt and are out do not stand for the others that hold it."""
    bench = Bench("predicted_cost", [1] * 300, known=1.0)
    blocks = list(range(60))
    demand = Demand(4000, is_stream=True, blocks=blocks, ends=[64 * (place + 1) for place in range(60)])
    for holder in (10, 11, 12, 13, 14, 200):
        bench.replicas[holder].begin(Match(demand), 0.0).end()
    for holder in (10, 11, 12, 13, 14):
        bench.breakers[holder].fail(bench.breakers[holder].begin())

    assert bench.send(4000, blocks) == 200

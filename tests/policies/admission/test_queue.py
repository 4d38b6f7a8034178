"""The line: who is next, whoever comes, goes and is served in between."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from backends.protocol import Priority, Slo
from policies.admission.fairness import Counters
from policies.admission.queue import AdmissionQueue, Waiting
from policies.pool.load.demand import Demand

SLO = Slo(2.0, 0.0, 0.1)
CLIENTS = ("ann", "bob", "cyd")


def waiting(client: str, *, priority: Priority = Priority.NORMAL, at: float = 0.0, tokens: int = 10) -> Waiting:
    """Someone whose first token is due 2 s after `at`."""
    return Waiting(Demand(tokens, is_stream=True), SLO, client=client, priority=priority, arrived_at=at)


@dataclass
class Oracle:
    """The same line as a list that is sorted whenever somebody asks."""

    counters: Counters
    standing: list[Waiting] = field(default_factory=list)

    def add(self, new: Waiting) -> None:
        """Stand at the end, and give up what was saved while away."""
        if self.standing and all(each.client != new.client for each in self.standing):
            self.counters.lift(new.client, min(self.counters.of(each.client) for each in self.standing))
        self.standing.append(new)

    def order(self, each: Waiting) -> tuple[int, float, str, float]:
        """Priority, then who has had least (by name among equals), then who is due first."""
        return each.priority, self.counters.of(each.client), each.client, each.deadline

    def head(self) -> Waiting:
        """The first in that order; of equals the one that came first."""
        return min(self.standing, key=self.order)

    def least_deserving(self) -> Waiting:
        """Lowest priority, most calls, last due."""
        lowest = [each for each in self.standing if each.priority == max(each.priority for each in self.standing)]
        counts = {each.client: sum(other.client == each.client for other in lowest) for each in lowest}
        return max(
            (each for each in lowest if counts[each.client] == max(counts.values())), key=lambda each: each.deadline
        )


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.sampled_from(CLIENTS), st.sampled_from(Priority), st.integers(0, 5), st.integers(1, 99)
        ),
        st.tuples(st.just("serve"), st.integers(1, 10_000)),
        st.tuples(st.just("leave"), st.integers(0, 1000)),
        st.tuples(st.just("pass"), st.sampled_from([1.0, 10.0, 3000.0])),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_line_is_served_as_a_sorted_list_would_be(steps: list[tuple[object, ...]]) -> None:
    """Whatever happens, the head is the oracle's, and numbers and tokens are those of who stands."""
    counters, own = Counters(30.0, {"ann": 4.0}), Counters(30.0, {"ann": 4.0})
    line: AdmissionQueue[Waiting] = AdmissionQueue(counters)
    oracle = Oracle(own)
    now = 0.0
    for step in steps:
        match step:
            case ("add", str(name), Priority() as priority, int(at), int(tokens)):
                new = waiting(name, priority=priority, at=now + at, tokens=tokens)
                oracle.add(new)
                line.add(new)
            case ("pass", float(seconds)):
                now += seconds
            case ("serve", int(charged)) if oracle.standing:
                head = line.head()
                line.remove(head)
                oracle.standing.remove(head)
                counters.charge(head.client, charged, now)
                own.charge(head.client, charged, now)
            case ("leave", int(place)) if oracle.standing:
                gone = oracle.standing.pop(place % len(oracle.standing))
                line.remove(gone)
                assert gone.is_over
        assert len(line) == len(oracle.standing)
        assert line.tokens == sum(each.demand.tokens for each in oracle.standing)
        if oracle.standing:
            assert oracle.order(line.head()) == oracle.order(oracle.head())
            assert line.rank() == (line.head().priority, counters.of(line.head().client), line.head().deadline)
            worst, expected = line.least_deserving(), oracle.least_deserving()
            assert (worst.priority, line.num_beside(worst)) == (expected.priority, line.num_beside(expected))
            assert all(
                line.num_beside(each)
                == sum((o.client, o.priority) == (each.client, each.priority) for o in oracle.standing)
                for each in oracle.standing
            )


def test_line_equal_counters_and_deadlines_keep_the_order_of_arrival() -> None:
    """Of a client's calls that are due at once the first to come goes first."""
    line: AdmissionQueue[Waiting] = AdmissionQueue(Counters(30.0, {}))
    callers = [waiting("ann") for _ in range(5)]
    for call in callers:
        line.add(call)

    served = []
    while line:
        served.append(line.head())
        line.remove(served[-1])

    assert served == callers


def test_line_client_that_had_much_waits_until_others_have_had_as_much() -> None:
    """Turns are taken by tokens had, not by time of arrival."""
    counters = Counters(1e9, {})
    line: AdmissionQueue[Waiting] = AdmissionQueue(counters)
    counters.charge("greedy", 100, 0.0)
    for number in range(4):
        line.add(waiting("greedy", at=number))
    for number in range(4):
        line.add(waiting("modest", at=10 + number))

    # The modest one begins where the greedy one is: nothing is saved up. Then they take turns.
    served = []
    while line:
        head = line.head()
        line.remove(head)
        counters.charge(head.client, 50, 0.0)
        served.append(head.client)

    assert served == ["greedy", "modest"] * 4


def test_line_keeps_its_order_when_all_counters_are_made_smaller() -> None:
    """After an hour what was counted before it means nothing beside what has been since."""
    counters = Counters(30.0, {})
    line: AdmissionQueue[Waiting] = AdmissionQueue(counters)
    for client, tokens in (("ann", 100), ("bob", 200)):
        counters.charge(client, tokens, 0.0)
        line.add(waiting(client))
    assert line.head().client == "ann"

    counters.charge("cyd", 20, 3000.0)
    line.add(waiting("cyd"))
    served = []
    while line:
        served.append(line.head().client)
        line.remove(line.head())

    assert counters.era == 1
    assert served == ["ann", "bob", "cyd"]


def test_line_memory_under_churn_is_bounded_by_who_stands() -> None:
    """Thousands who come and go behind one that stays leave nothing behind."""
    line: AdmissionQueue[Waiting] = AdmissionQueue(Counters(30.0, {}))
    line.add(waiting("stays"))

    def churn(numbers: range) -> int:
        for number in numbers:
            for name in ("stays", f"client-{number}"):
                call = waiting(name, at=number)
                line.add(call)
                line.remove(call)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = churn(range(1000))
        many = churn(range(1000, 11_000))
    finally:
        tracemalloc.stop()

    assert len(line) == 1
    assert many - few < 20_000

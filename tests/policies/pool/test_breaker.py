"""The circuit breaker's states and permits."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policies.pool.breaker import BreakerState, CircuitBreaker
from policies.schema import CircuitBreakerPolicy
from tests.support.pool import StoppedClock

OPEN_FOR_S = 30.0


def _policy(failures: int = 3, half_open_max: int = 1) -> CircuitBreakerPolicy:
    return CircuitBreakerPolicy.model_validate(
        {"consecutive_failures": failures, "open_for": f"{OPEN_FOR_S:g}s", "half_open_max": half_open_max}
    )


def _opened(clock: StoppedClock, **policy: int) -> CircuitBreaker:
    breaker = CircuitBreaker(_policy(**policy), clock)
    while breaker.is_closed:
        breaker.fail(breaker.begin())
    return breaker


def test_breaker_opens_after_failures_in_a_row() -> None:
    """The last of the configured number of failures opens it, and says for how long."""
    clock = StoppedClock()
    breaker = CircuitBreaker(_policy(failures=3), clock)
    for _ in range(2):
        breaker.fail(breaker.begin())
    before = breaker.is_available()
    breaker.fail(breaker.begin())

    assert before
    assert not breaker.is_available()
    assert breaker.retry_in_s() == OPEN_FOR_S
    assert breaker.snapshot().opened == 1


def test_breaker_success_starts_the_count_again() -> None:
    """Failures count only in a row."""
    breaker = CircuitBreaker(_policy(failures=2), StoppedClock())
    for _ in range(10):
        breaker.fail(breaker.begin())
        breaker.succeed(breaker.begin())

    assert breaker.is_closed


def test_breaker_release_neither_counts_nor_clears() -> None:
    """An attempt that says nothing leaves the count as it is."""
    breaker = CircuitBreaker(_policy(failures=2), StoppedClock())
    breaker.fail(breaker.begin())
    breaker.release(breaker.begin())
    breaker.fail(breaker.begin())

    assert breaker.snapshot().state is BreakerState.OPEN


def test_breaker_half_open_lets_through_only_its_permits() -> None:
    """When its time is over, as many probes may go as configured."""
    clock = StoppedClock()
    breaker = _opened(clock, half_open_max=2)
    clock.seconds += OPEN_FOR_S
    shown = breaker.snapshot().state
    breaker.begin()
    breaker.begin()

    assert shown is BreakerState.HALF_OPEN
    assert not breaker.is_available()
    assert breaker.retry_in_s() > 0


def test_breaker_half_open_success_closes() -> None:
    """A probe that works brings the backend back with a clean count."""
    clock = StoppedClock()
    breaker = _opened(clock)
    clock.seconds += OPEN_FOR_S
    breaker.succeed(breaker.begin())

    assert breaker.is_closed
    assert breaker.snapshot().consecutive_failures == 0


def test_breaker_half_open_failure_opens_again() -> None:
    """A probe that fails takes it out for another full time."""
    clock = StoppedClock()
    breaker = _opened(clock)
    clock.seconds += OPEN_FOR_S
    breaker.fail(breaker.begin())

    assert breaker.retry_in_s() == OPEN_FOR_S
    assert breaker.snapshot().opened == 2


def test_breaker_half_open_cancelled_probe_gives_its_permit_back() -> None:
    """A cancelled probe does not keep the backend out."""
    clock = StoppedClock()
    breaker = _opened(clock)
    clock.seconds += OPEN_FOR_S
    breaker.release(breaker.begin())

    assert breaker.is_available()
    assert breaker.snapshot().probes_in_flight == 0


def test_breaker_half_open_stream_begun_closes_on_probation() -> None:
    """A stream that began lets others in at once, but its cut opens the breaker again without further failures."""
    clock = StoppedClock()
    breaker = _opened(clock, failures=3)
    clock.seconds += OPEN_FOR_S
    ticket = breaker.answering(breaker.begin())
    was_closed = breaker.is_closed
    breaker.fail(ticket)

    assert was_closed
    assert not breaker.is_available()


def test_breaker_late_outcomes_of_an_earlier_state_are_ignored() -> None:
    """A call from before the opening neither closes the breaker nor takes its probe's permit."""
    clock = StoppedClock()
    breaker = CircuitBreaker(_policy(failures=1), clock)
    old = [breaker.begin() for _ in range(4)]
    breaker.fail(breaker.begin())
    clock.seconds += OPEN_FOR_S
    breaker.begin()
    breaker.succeed(old[0])
    breaker.fail(old[1])
    breaker.release(old[2])
    breaker.answering(old[3])

    assert not breaker.is_closed
    assert breaker.snapshot().probes_in_flight == 1


def test_breaker_that_may_not_open_stays_in_rotation() -> None:
    """While too many others are out it goes on, and opens at the next failure once it may."""
    allowed = False
    breaker = CircuitBreaker(_policy(failures=2), StoppedClock(), lambda: allowed)
    for _ in range(5):
        breaker.fail(breaker.begin())
    kept = breaker.is_available()
    allowed = True
    breaker.fail(breaker.begin())

    assert kept
    assert not breaker.is_available()


class BreakerMachine(RuleBasedStateMachine):
    """Any order of attempts, outcomes and time, against a model that is told the same."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = StoppedClock()
        self.breaker = CircuitBreaker(_policy(failures=3, half_open_max=2), self.clock)
        self.state = "closed"
        self.failures = 0
        self.open_until = 0.0
        self.epoch = 0
        self.in_flight: list[tuple[int, int]] = []
        """Ticket of the breaker, and the model's epoch in which the attempt began."""

    def probes(self) -> int:
        """Attempts of the present half-open time that have not ended."""
        return sum(epoch == self.epoch for _, epoch in self.in_flight) if self.state == "half" else 0

    def enter(self, state: str, failures: int) -> None:
        """The model changes state."""
        self.state, self.failures = state, failures
        self.epoch += 1
        if state == "open":
            self.open_until = self.clock.seconds + OPEN_FOR_S

    @rule(seconds=st.sampled_from([0.5, 10.0, OPEN_FOR_S]))
    def wait(self, seconds: float) -> None:
        """Time goes by."""
        self.clock.seconds += seconds

    @precondition(lambda self: self.breaker.is_available())
    @rule()
    def begin(self) -> None:
        """An attempt starts."""
        ticket = self.breaker.begin()
        if self.state == "open":
            self.enter("half", self.failures)
        self.in_flight.append((ticket, self.epoch))

    @precondition(lambda self: self.in_flight)
    @rule(position=st.integers(0, 100), outcome=st.sampled_from(["succeed", "fail", "release", "answering"]))
    def end(self, position: int, outcome: str) -> None:
        """Some attempt in flight ends, or its stream begins."""
        ticket, epoch = self.in_flight.pop(position % len(self.in_flight))
        is_current = epoch == self.epoch
        if outcome == "answering":
            new_ticket = self.breaker.answering(ticket)
            if is_current and self.state == "half":
                self.enter("closed", self.failures)
                epoch = self.epoch
            self.in_flight.append((new_ticket, epoch))
            return
        getattr(self.breaker, outcome)(ticket)
        if is_current and outcome == "succeed":
            if self.state == "half":
                self.enter("closed", 0)
            self.failures = 0
        elif is_current and outcome == "fail":
            self.failures += 1
            if self.state == "half" or self.failures >= 3:
                self.enter("open", self.failures)

    @invariant()
    def agrees_with_the_model(self) -> None:
        """The same calls may be sent, and as many permits are taken."""
        is_over = self.clock.seconds >= self.open_until
        expected = {"closed": True, "open": is_over, "half": self.probes() < 2}[self.state]
        assert self.breaker.is_available() == expected
        assert self.breaker.is_closed == (self.state == "closed")
        assert self.breaker.snapshot().probes_in_flight == self.probes() <= 2

    def teardown(self) -> None:
        """No permit is lost: with every attempt over and time gone by, it lets calls through."""
        for ticket, _ in self.in_flight:
            self.breaker.release(ticket)
        self.clock.seconds += OPEN_FOR_S
        assert self.breaker.is_available()


TestBreakerMachine = BreakerMachine.TestCase

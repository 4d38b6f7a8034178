"""The circuit breaker's states and permits."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policies.pool.health.breaker import BreakerState, CircuitBreaker
from policies.pool.settings import CircuitBreakerPolicy
from tests.support.policy.pool import StoppedClock

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


def test_breaker_half_open_failure_opens_again_for_longer() -> None:
    """Each opening in a row takes it out for one time more, up to the longest."""
    clock = StoppedClock()
    breaker = _opened(clock)
    rests = [breaker.retry_in_s()]
    for _ in range(11):
        clock.seconds += breaker.retry_in_s()
        breaker.fail(breaker.begin())
        rests.append(breaker.retry_in_s())

    assert rests == [min(number * OPEN_FOR_S, 60.0) for number in range(1, 13)]
    assert breaker.snapshot().opened == 12


def test_breaker_that_worked_as_long_as_it_rested_starts_over() -> None:
    """Failures that lie far apart are not in a row; those that do not are."""
    clock = StoppedClock()
    breaker = _opened(clock)
    rests = []
    for worked_s in (OPEN_FOR_S - 1, 2 * OPEN_FOR_S):
        clock.seconds += breaker.retry_in_s()
        breaker.succeed(breaker.begin())
        clock.seconds += worked_s
        while breaker.is_closed:
            breaker.fail(breaker.begin())
        rests.append(breaker.retry_in_s())

    assert rests == [2 * OPEN_FOR_S, OPEN_FOR_S]


def test_breaker_trial_that_took_long_to_fail_is_one_more_in_a_row() -> None:
    """The time of a half-open trial is no time in which it worked."""
    clock = StoppedClock()
    breaker = _opened(clock)
    clock.seconds += OPEN_FOR_S
    ticket = breaker.begin()
    clock.seconds += 10 * OPEN_FOR_S
    breaker.fail(ticket)

    assert breaker.retry_in_s() == 2 * OPEN_FOR_S


def test_breaker_longest_rest_is_never_below_the_first() -> None:
    """`max_open_for` bounds what is added, not what was asked for."""
    policy = CircuitBreakerPolicy.model_validate({"open_for": "10m", "max_open_for": "5m"})
    breaker = CircuitBreaker(policy, StoppedClock())
    while breaker.is_closed:
        breaker.fail(breaker.begin())

    assert breaker.retry_in_s() == 600.0


def _failing_now_and_then(clock: StoppedClock, *, calls: int, every: int, seconds: float) -> CircuitBreaker:
    """So many calls over so many seconds, every so many-th of them a failure, never five in a row."""
    breaker = CircuitBreaker(CircuitBreakerPolicy(), clock)
    for number in range(1, calls + 1):
        clock.seconds += seconds / calls
        ticket = breaker.begin()
        if number % every:
            breaker.succeed(ticket)
        else:
            breaker.fail(ticket)
        if not breaker.is_closed:
            break
    return breaker


def test_breaker_opens_at_an_error_rate_without_failures_in_a_row() -> None:
    """A quarter of the calls fails, one at a time: over 20 %, so it opens, as soon as 20 calls say so."""
    clock = StoppedClock()
    breaker = _failing_now_and_then(clock, calls=40, every=4, seconds=10.0)

    assert not breaker.is_closed
    assert clock.seconds == 1000.0 + 20 * 0.25


def test_breaker_bears_the_error_rate_that_it_is_allowed() -> None:
    """A sixth is not above 20 %; nor is any share of fewer than 20 calls, or of calls spread over more time."""
    allowed = _failing_now_and_then(StoppedClock(), calls=500, every=6, seconds=60.0)
    few = _failing_now_and_then(StoppedClock(), calls=19, every=2, seconds=1.0)
    spread = _failing_now_and_then(StoppedClock(), calls=100, every=2, seconds=200.0)

    assert (allowed.is_closed, few.is_closed, spread.is_closed) == (True, True, True)


def _turns(breaker: CircuitBreaker, clock: StoppedClock, seconds: float, per_s: int = 100) -> list[int]:
    """How often it took part in each second of decisions."""
    turns = []
    for _ in range(int(seconds)):
        turns.append(0)
        for _ in range(per_s):
            clock.seconds += 1 / per_s
            turns[-1] += breaker.takes_part()
    return turns


def test_breaker_that_closes_again_takes_a_growing_share() -> None:
    """A tenth at first, then as much as of its ten seconds have passed, then every decision."""
    clock = StoppedClock()
    breaker = _opened(clock)
    clock.seconds += OPEN_FOR_S
    breaker.succeed(breaker.begin())
    turns = _turns(breaker, clock, 12)

    assert breaker.is_available()
    expected = [10, *range(15, 100, 10), 100, 100]
    assert [abs(turn - growing) <= 2 for turn, growing in zip(turns, expected, strict=True)] == [True] * 12, turns


def test_breaker_slow_start_off_takes_part_at_once() -> None:
    """With `0s` there is none, whether it comes back or is new."""
    clock = StoppedClock()
    policy = CircuitBreakerPolicy.model_validate({"consecutive_failures": 1, "slow_start": "0s"})
    back, new = CircuitBreaker(policy, clock), CircuitBreaker(policy, clock, is_new=True)
    back.fail(back.begin())
    clock.seconds += OPEN_FOR_S
    back.succeed(back.begin())

    assert (_turns(back, clock, 1), _turns(new, clock, 1)) == ([100], [100])


def test_breaker_new_member_starts_slowly_and_an_old_one_does_not() -> None:
    """What a reload adds is as cold as what comes back; what was there at the start is not."""
    clock = StoppedClock()
    new, old = CircuitBreaker(_policy(), clock, is_new=True), CircuitBreaker(_policy(), clock)

    assert _turns(new, clock, 1)[0] <= 11
    assert _turns(old, clock, 1) == [100]


def test_breaker_probes_open_it_until_one_goes_well() -> None:
    """What a probe finds down is out at once, stays so while probes say so, and is back with the first good one."""
    clock = StoppedClock()
    breaker = CircuitBreaker(_policy(), clock)
    available = []
    for _ in range(20):
        breaker.mark_down(10.0)
        clock.seconds += 5.0
        available.append(breaker.is_available())
    breaker.mark_up()

    assert available == [False] * 20
    assert breaker.is_closed
    assert breaker.snapshot().opened == 1


def test_breaker_probes_that_saw_nothing_do_not_close_it() -> None:
    """Where the probed path works and calls fail, the calls are right; after a bad probe the good one counts."""
    clock = StoppedClock()
    breaker = _opened(clock)
    breaker.mark_up()
    blind = breaker.is_available()
    breaker.mark_down(1.0)
    breaker.mark_up()

    assert not blind
    assert breaker.is_closed


def test_breaker_probes_may_not_open_what_may_not_open() -> None:
    """The cap on a pool's share holds for probes too."""
    breaker = CircuitBreaker(_policy(), StoppedClock(), lambda: False)
    breaker.mark_down(10.0)

    assert breaker.is_closed


def test_breaker_whose_prober_stopped_is_tried_again() -> None:
    """Nobody says anything any more: after its time it is half open like any other."""
    clock = StoppedClock()
    breaker = CircuitBreaker(_policy(), clock)
    breaker.mark_down(45.0)
    clock.seconds += 44.0
    before = breaker.is_available()
    clock.seconds += 1.0

    assert (before, breaker.snapshot().state) == (False, BreakerState.HALF_OPEN)


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


WINDOW_S, MIN_CALLS, RATE = 20.0, 8, 0.5


class BreakerMachine(RuleBasedStateMachine):
    """Any order of attempts, outcomes, probes and time, against a model that is told the same.

    The error rate looks back at least half of its window and at most all of it: where the model finds it too high, or
    fine, whatever part it takes, the breaker must agree.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = StoppedClock()
        policy = CircuitBreakerPolicy.model_validate(
            {
                "consecutive_failures": 3,
                "half_open_max": 2,
                "error_rate": RATE,
                "min_calls": MIN_CALLS,
                "window": f"{WINDOW_S:g}s",
                "open_for": f"{OPEN_FOR_S:g}s",
                "max_open_for": "100s",
            }
        )
        self.may_open = True
        self.breaker = CircuitBreaker(policy, self.clock, lambda: self.may_open)
        self.state = "closed"
        self.failures = 0
        self.opened = 0
        self.in_row = 0
        self.rest_s = 0.0
        self.open_until = 0.0
        self.entered_at = self.clock.seconds
        self.is_down = False
        self.epoch = 0
        self.ended: list[tuple[float, bool]] = []
        """Calls of the present closed time: when they ended, and whether they failed."""
        self.in_flight: list[tuple[int, int]] = []
        """Ticket of the breaker, and the model's epoch in which the attempt began."""

    def probes(self) -> int:
        """Attempts of the present half-open time that have not ended."""
        return sum(epoch == self.epoch for _, epoch in self.in_flight) if self.state == "half" else 0

    def enter(self, state: str) -> None:
        """The model changes state."""
        if state == "open":
            if self.state == "closed" and self.clock.seconds - self.entered_at >= self.rest_s:
                self.in_row = 0
            self.in_row += 1
            self.opened += 1
            self.rest_s = min(self.in_row * OPEN_FOR_S, 100.0)
            self.open_until = self.clock.seconds + self.rest_s
        self.state = state
        self.epoch += 1
        self.ended = []
        self.entered_at = self.clock.seconds

    def verdicts(self) -> set[bool]:
        """Whether too many have failed, for every part of the window that may be looked at."""
        now = self.clock.seconds
        starts = {now - WINDOW_S, now - WINDOW_S / 2, *(at for at, _ in self.ended)}
        found = set()
        for start in starts:
            if now - WINDOW_S <= start <= now - WINDOW_S / 2:
                seen = [failed for at, failed in self.ended if at >= start]
                found.add(len(seen) >= MIN_CALLS and sum(seen) > RATE * len(seen))
        return found

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0, OPEN_FOR_S]))
    def wait(self, seconds: float) -> None:
        """Time goes by."""
        self.clock.seconds += seconds

    @rule(may=st.booleans())
    def share_of_the_pool(self, may: bool) -> None:
        """Others of the pool are out, or are not."""
        self.may_open = may

    @precondition(lambda self: self.breaker.is_available())
    @rule()
    def begin(self) -> None:
        """An attempt starts."""
        ticket = self.breaker.begin()
        if self.state == "open":
            self.enter("half")
        self.in_flight.append((ticket, self.epoch))

    @precondition(lambda self: self.state == "closed")
    @rule(outcomes=st.lists(st.booleans(), min_size=1, max_size=12))
    def short_calls(self, outcomes: list[bool]) -> None:
        """Some calls, one after the other, each at once over."""
        for failed in outcomes:
            if self.state == "closed":
                self.in_flight.append((self.breaker.begin(), self.epoch))
                self.end(len(self.in_flight) - 1, "fail" if failed else "succeed")

    @precondition(lambda self: self.in_flight)
    @rule(position=st.integers(0, 100), outcome=st.sampled_from(["succeed", "fail", "release", "answering"]))
    def end(self, position: int, outcome: str) -> None:
        """Some attempt in flight ends, or its stream begins."""
        ticket, epoch = self.in_flight.pop(position % len(self.in_flight))
        is_current = epoch == self.epoch
        if outcome == "answering":
            new_ticket = self.breaker.answering(ticket)
            if is_current and self.state == "half":
                self.enter("closed")
                epoch = self.epoch
            self.in_flight.append((new_ticket, epoch))
            return
        getattr(self.breaker, outcome)(ticket)
        if is_current and outcome == "succeed":
            self.failures = 0
            if self.state == "half":
                self.enter("closed")
            else:
                self.ended.append((self.clock.seconds, False))
        elif is_current and outcome == "fail":
            self.failures += 1
            self.ended.append((self.clock.seconds, True))
            wanted = {True} if self.failures >= 3 else self.verdicts()
            agrees = wanted == {True} or (len(wanted) == 2 and not self.breaker.is_closed)
            if self.state == "half" or (self.may_open and agrees):
                self.enter("open")

    @rule(for_s=st.sampled_from([5.0, 50.0]))
    def probe_fails(self, for_s: float) -> None:
        """A probe finds the backend down."""
        self.breaker.mark_down(for_s)
        if self.state != "closed" or self.may_open:
            self.is_down = True
            if self.state != "open":
                self.enter("open")
            self.open_until = max(self.open_until, self.clock.seconds + for_s)

    @rule()
    def probe_succeeds(self) -> None:
        """A probe finds it working."""
        self.breaker.mark_up()
        if self.is_down and self.state != "closed":
            self.enter("closed")
        self.is_down = False

    @invariant()
    def agrees_with_the_model(self) -> None:
        """The same calls may be sent, as many permits are taken, and it opened as often."""
        is_over = self.clock.seconds >= self.open_until
        expected = {"closed": True, "open": is_over, "half": self.probes() < 2}[self.state]
        assert self.breaker.is_available() == expected
        assert self.breaker.is_closed == (self.state == "closed")
        assert self.breaker.snapshot().probes_in_flight == self.probes() <= 2
        assert self.breaker.snapshot().opened == self.opened
        assert expected or self.breaker.retry_in_s() > 0

    def teardown(self) -> None:
        """No permit is lost: with every attempt over and time gone by, it lets calls through."""
        for ticket, _ in self.in_flight:
            self.breaker.release(ticket)
        self.clock.seconds += 200.0
        assert self.breaker.is_available()


TestBreakerMachine = BreakerMachine.TestCase

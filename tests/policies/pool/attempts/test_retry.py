"""The retry budget, the reading of Retry-After, the backoff."""

from __future__ import annotations

from email.utils import formatdate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backends.errors import ConnectFailed, NoBackendAvailable
from backends.protocol import Reply
from backends.waits import MAX_WAIT_S, retry_after_s
from policies.pool.attempts.retry import RetryBudget, backoff_s
from policies.pool.attempts.settings import BackoffPolicy
from tests.support.policy.pool import StoppedClock


def _reply(**headers: str) -> Reply:
    fields = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Reply(429, fields, body=b"{}")


def test_budget_under_load_allows_its_share_and_no_more() -> None:
    """With every call failing and wanting two retries, the extra calls stay at 20 % but for the small reserve."""
    clock = StoppedClock()
    budget = RetryBudget(20, clock)
    granted = 0
    for _ in range(10_000):
        clock.seconds += 0.001
        budget.add_call()
        granted += budget.spend_nowait() + budget.spend_nowait()

    assert 2000 <= granted <= 2000 + 10


def test_budget_quiet_route_may_always_retry_a_little() -> None:
    """One call a second may be retried each time, whatever the share."""
    clock = StoppedClock()
    budget = RetryBudget(1, clock)
    granted = 0
    for _ in range(100):
        clock.seconds += 1.0
        budget.add_call()
        granted += budget.spend_nowait()

    assert granted == 100


def test_budget_floor_gives_three_a_second() -> None:
    """Without calls that earn a share, retries are granted at the floor's rate."""
    clock = StoppedClock()
    budget = RetryBudget(20, clock)
    while budget.spend_nowait():
        pass
    granted = 0
    for _ in range(1000):
        clock.seconds += 0.01
        granted += budget.spend_nowait()

    assert granted == pytest.approx(30, abs=1)


def test_budget_of_zero_percent_allows_none() -> None:
    """0 % turns retries off, the reserve of a quiet route included."""
    clock = StoppedClock()
    budget = RetryBudget(0, clock)
    budget.add_call()
    clock.seconds += 100

    assert not budget.spend_nowait()


class BudgetMachine(RuleBasedStateMachine):
    """Any mix of calls, retries and time keeps the documented bound."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = StoppedClock()
        self.start = self.clock.seconds
        self.budget = RetryBudget(20, self.clock)
        self.calls = 0
        self.retries = 0

    @rule(count=st.integers(1, 200))
    def call(self, count: int) -> None:
        """Some calls come in."""
        for _ in range(count):
            self.budget.add_call()
        self.calls += count

    @rule(count=st.integers(1, 200))
    def retry(self, count: int) -> None:
        """Some retries are asked for at once."""
        self.retries += sum(self.budget.spend_nowait() for _ in range(count))

    @rule(seconds=st.floats(0, 1000))
    def wait(self, seconds: float) -> None:
        """Time goes by."""
        self.clock.seconds += seconds

    @invariant()
    def retries_are_bounded(self) -> None:
        """Share of calls, plus the floor's rate, plus its reserve."""
        assert self.retries <= 0.2 * self.calls + 3 * (self.clock.seconds - self.start) + 10 + 1e-6


TestBudgetMachine = BudgetMachine.TestCase


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("1000000000", MAX_WAIT_S),
        ("1e9", MAX_WAIT_S),
        ("9" * 400, MAX_WAIT_S),
        ("inf", None),
        ("-5", None),
        ("nan", None),
        ("", None),
        ("soon", None),
        ("Fri, 99 Foo 2026 99:99:99 GMT", None),
        ("Fri, 31 Dec 99999999 23:59:59 GMT", None),
    ],
)
def test_retry_after_value_is_read_or_ignored(value: str, expected: float | None) -> None:
    """Seconds are understood, to a day; negative, NaN and garbage count as not said."""
    assert retry_after_s(_reply(retry_after=value), StoppedClock()) == expected


def test_retry_after_date_is_measured_against_wall_time() -> None:
    """An HTTP date is the time until then; a past one means at once."""
    clock = StoppedClock()

    ahead = retry_after_s(_reply(retry_after=formatdate(clock.wall() + 30, usegmt=True)), clock)
    behind = retry_after_s(_reply(retry_after=formatdate(clock.wall() - 30, usegmt=True)), clock)
    unzoned = retry_after_s(_reply(retry_after=formatdate(clock.wall() + 30, localtime=False)), clock)

    assert (ahead, behind, unzoned) == (30.0, 0.0, 30.0)


def test_retry_after_milliseconds_win_over_seconds() -> None:
    """`retry-after-ms` is the finer of the two; where it is garbage the other counts."""
    clock = StoppedClock()

    assert retry_after_s(_reply(retry_after="9", retry_after_ms="250"), clock) == 0.25
    assert retry_after_s(_reply(retry_after="9", retry_after_ms="?"), clock) == 9.0


def test_retry_after_of_an_error_is_its_own() -> None:
    """An error carries the wait itself."""
    clock = StoppedClock()

    assert retry_after_s(NoBackendAvailable("x", retry_after_s=4.0), clock) == 4.0
    assert retry_after_s(ConnectFailed("x"), clock) is None


@given(st.binary(), st.binary())
def test_retry_after_any_bytes_give_a_wait_or_none(value: bytes, milliseconds: bytes) -> None:
    """Whatever stands there, the outcome is None or a wait from zero to a day."""
    reply = Reply(429, [(b"retry-after", value), (b"retry-after-ms", milliseconds)], body=b"")
    wait_s = retry_after_s(reply, StoppedClock())

    assert wait_s is None or 0 <= wait_s <= MAX_WAIT_S


def test_backoff_doubles_up_to_its_maximum() -> None:
    """Without jitter the waits are exact."""
    policy = BackoffPolicy.model_validate({"initial": "100ms", "max": "1s", "jitter": 0})

    waits = [backoff_s(policy, number, Random(1)) for number in (0, 1, 2, 3, 4, 10_000)]

    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


@given(st.integers(0, 10), st.floats(0, 1), st.integers())
def test_backoff_jitter_stays_within_its_share(number: int, jitter: float, seed: int) -> None:
    """The jitter moves the wait by at most its share, and never over the maximum."""
    policy = BackoffPolicy.model_validate({"initial": "100ms", "max": "5s", "jitter": jitter})
    base = min(5.0, 0.1 * 2**number)

    wait_s = backoff_s(policy, number, Random(seed))

    assert base * (1 - jitter) - 1e-9 <= wait_s <= min(5.0, base * (1 + jitter) + 1e-9)

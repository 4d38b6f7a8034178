"""No minute sees more than 110 % of a limit of tokens, and hardly any of it is lost: in time that a test makes."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.limits.bursts import burst_of_requests, burst_of_tokens
from policies.limits.counters import Full, Hold, Rate
from policies.limits.memory import MemoryCounters

PER_MINUTE = 100_000
BURST_S = 6.0


class Call(NamedTuple):
    """What one is expected to use, what it does, and how long it takes."""

    expected: int
    used: int
    lasts_s: float


class SetClock:
    """Stands where it is put."""

    at = 0.0

    def now(self) -> float:
        """Monotonic seconds."""
        return self.at

    def wall(self) -> float:
        """The same."""
        return self.at


class Minutes:
    """What went through a bucket in some minutes: each call counts with what it used when it was let in."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.calls: list[tuple[float, int]] = []
        self.lowest_unsettled = self.highest_unsettled = 0
        """What calls under way used beyond what was expected of them, together."""

    @property
    def whole(self) -> float:
        """Of the burst and of what flows in."""
        return sum(used for _, used in self.calls) / (PER_MINUTE * (self._number + BURST_S / 60))

    @property
    def worst(self) -> int:
        """The most in any 60 s."""
        moments = [at for at, _ in self.calls]
        sums = [0]
        for _, used in self.calls:
            sums.append(sums[-1] + used)
        return max(sums[bisect_left(moments, at + 60)] - before for at, before in zip(moments, sums, strict=False))


async def minutes_of(callers: list[Iterator[Call]], capacity: int, number: int) -> Minutes:
    """Each caller asks again as soon as its last call has ended, and waits as it is told when it is refused."""
    clock = SetClock()
    counters = MemoryCounters(clock)
    came = Minutes(number)
    due: list[tuple[float, int, Call | None, Hold | None]] = [(0.0, n, None, None) for n in range(len(callers))]
    unsettled = 0
    while due:
        clock.at, caller, call, hold = heapq.heappop(due)
        if clock.at >= 60 * number:
            break
        if hold is not None and call is not None:
            counters.settle(hold, (call.used,))
            unsettled -= call.used - call.expected
            call = None
        call = call or next(callers[caller])
        answer = await counters.reserve((Rate("tokens", PER_MINUTE, capacity, call.expected),))
        if isinstance(answer, Full):
            assert answer.retry_after_s is not None
            heapq.heappush(due, (clock.at + answer.retry_after_s + 1e-6, caller, call, None))
            continue
        came.calls.append((clock.at, call.used))
        unsettled += call.used - call.expected
        came.lowest_unsettled = min(came.lowest_unsettled, unsettled)
        came.highest_unsettled = max(came.highest_unsettled, unsettled)
        heapq.heappush(due, (clock.at + call.lasts_s, caller, call, answer))
    return came


def calls_of(draw: Random, most: int, error: int) -> Iterator[Call]:
    """Whatever length, each by up to `error` other than expected."""
    while True:
        expected = draw.randint(1, most)
        used = max(0, expected + draw.randint(-error, error))
        yield Call(expected, used, draw.uniform(0.0, 20.0))


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 40), st.sampled_from([1_000, 5_000, 30_000]), st.floats(0, 1))
async def test_tokens_worst_minute_is_within_110_percent(
    draw: Random, num_callers: int, most: int, wrong: float
) -> None:
    """However calls come, as long as those under way are wrong by no more than a fifth of the burst together."""
    error = int(wrong * 0.01 * PER_MINUTE / num_callers)
    callers = [calls_of(Random(draw.random()), most, error) for _ in range(num_callers)]
    came = await minutes_of(callers, burst_of_tokens(PER_MINUTE, BURST_S), 3)

    # What is larger than the burst waits until all of it is there, and takes the rest from the time behind it.
    too_large = max(0, most - burst_of_tokens(PER_MINUTE, BURST_S))
    assert came.worst <= 1.1 * PER_MINUTE + too_large


@pytest.mark.parametrize("seed", range(3))
async def test_tokens_of_calls_that_are_often_wrong_are_within_110_percent(seed: int) -> None:
    """Two dozen callers whose calls use a fifth to nearly twice of what was expected; and hardly less than due."""
    draw = Random(seed)

    def calls() -> Iterator[Call]:
        while True:
            yield Call(500, round(draw.uniform(0.2, 1.8) * 500), draw.uniform(1.0, 5.0))

    came = await minutes_of([calls()] * 24, burst_of_tokens(PER_MINUTE, BURST_S), 10)

    assert came.worst <= 1.1 * PER_MINUTE
    assert 0.97 <= came.whole <= 1.01


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 30), st.sampled_from([200, 2_000]))
async def test_tokens_beyond_are_what_calls_under_way_used_beyond(draw: Random, num_callers: int, error: int) -> None:
    """However wrong all are, no minute sees more than the bucket lets through and what nobody could know in it."""
    callers = [calls_of(Random(draw.random()), 1000, error) for _ in range(num_callers)]
    capacity = burst_of_tokens(PER_MINUTE, BURST_S)
    came = await minutes_of(callers, capacity, 3)

    assert came.worst <= PER_MINUTE + capacity + came.highest_unsettled - came.lowest_unsettled


async def test_calls_of_tens_of_bursts_take_what_they_use_from_those_behind_them() -> None:
    """They were let in as fast as if each were as large as the burst, until they had ended."""

    def calls() -> Iterator[Call]:
        while True:
            yield Call(50_000, 50_000, 40.0)

    came = await minutes_of([calls()] * 12, burst_of_tokens(PER_MINUTE, BURST_S), 10)

    assert came.worst <= 1.5 * PER_MINUTE
    assert 0.97 <= came.whole <= 1.01 + 0.05


@pytest.mark.parametrize(
    ("burst_s", "tokens", "requests"),
    [(6.0, 8_000, 10_000), (60.0, 98_000, 100_000), (1e-6, 1, 1), (1.0, 1_333, 1_666)],
)
def test_burst_of_tokens_leaves_out_what_is_unforeseen(burst_s: float, tokens: int, requests: int) -> None:
    """No more than a fiftieth of a minute, and no more than a fifth of the burst; of requests all of it."""
    assert burst_of_tokens(PER_MINUTE, burst_s) == tokens
    assert burst_of_requests(PER_MINUTE, burst_s) == requests

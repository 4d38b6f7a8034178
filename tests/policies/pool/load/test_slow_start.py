"""A backend that is new to a pool gets a growing share, whichever way the pool balances."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import get_args

import pytest

from policies.pool.balance.settings import Balance
from policies.pool.load.fleet import Fleet
from policies.pool.member import Member
from policies.pool.pool import Pool
from policies.schema import RoutePolicy
from tests.support.calls import make_call
from tests.support.policy.pool import Played, StoppedClock

WAYS = get_args(Balance)


async def _shares(way: str, *, at_s: float, slow_start: str = "10s", priorities: tuple[int, ...] = (0, 0, 0)) -> float:
    """The new one's share of 400 calls, so long after it was added to two others."""
    clock = StoppedClock()
    leaves = [Played(name) for name in ("a", "b", "new")]
    route = RoutePolicy.model_validate(
        {
            "name": "r",
            "match": {"models": ["*"]},
            "backends": [
                {"ref": leaf.name, "priority": priority, "price": {"input_per_1m": 1, "output_per_1m": 1}}
                for leaf, priority in zip(leaves, priorities, strict=True)
            ],
            "routing": {"policy": way},
            "circuit_breaker": {"slow_start": slow_start},
        }
    )
    fleet = Fleet([route], {leaf.name: leaf for leaf in leaves}, clock, random=Random(1))
    pool = Pool(
        "r",
        [
            Member(leaf, priority=priority, is_new=leaf.name == "new")
            for leaf, priority in zip(leaves, priorities, strict=True)
        ],
        retry=route.retry,
        breaker=route.circuit_breaker,
        clock=clock,
        random=Random(1),
        routing=fleet.routing("r"),
    )
    clock.seconds += at_s
    counts: Counter[bytes | None] = Counter()
    for number in range(400):
        counts[(await pool.send(make_call(f"{number} times", deadline=1e9))).body] += 1
    return counts[b"new"] / 400


@pytest.mark.parametrize("way", WAYS)
async def test_slow_start_share_grows_whichever_way_is_balanced(way: str) -> None:
    """At most a tenth in the beginning, more in the middle, its third in the end."""
    first, middle, end = [await _shares(way, at_s=at_s) for at_s in (0.0, 5.0, 10.0)]

    assert 0 < first <= 0.11
    assert first < middle < 0.3
    assert 0.25 < end < 0.42


@pytest.mark.parametrize("way", WAYS)
async def test_slow_start_of_the_only_one_of_its_priority_takes_everything(way: str) -> None:
    """There is nobody to take its place: the next priority is for when it is out, not for when it is new."""
    assert await _shares(way, at_s=0.0, priorities=(1, 1, 0)) == 1.0


async def test_slow_start_off_shares_at_once() -> None:
    """`0s` gives it its third from the first call on."""
    assert 0.32 < await _shares("round_robin", at_s=0.0, slow_start="0s") < 0.34

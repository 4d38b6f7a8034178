"""Who is in time where: a call that is, at the price of the streams that it would hold up, is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.protocol import Priority, Slo
from gateway.simulate.virtual_loop import VirtualClock
from policies.admission.judge import AdmissionJudge
from policies.admission.queue import Waiting
from policies.admission.settings import AdmissionPolicy
from policies.pool.load.demand import Demand
from policies.pool.load.latency_model import features
from policies.pool.load.match import Match
from policies.pool.load.replica import Replica
from policies.pool.prompts.prefix_index import PrefixIndex
from tests.support.clock import FakeClock
from tests.support.policy.admission import Desk, OneAtATime, Site, answered, asking, client, in_virtual_time, learned

LIMITS = Slo(100.0, 0.0, 0.1)
LONG, SHORT = 70_000, 2_000
"""Some four seconds of computing, and some fifty milliseconds."""


def busy(usual_s: float) -> Replica:
    """A backend that is known, and has a stream in hand; its streams have taken so long between tokens."""
    clock = FakeClock()
    replica = Replica("busy", 1_000_000, PrefixIndex(), clock)
    learned(replica)
    if usual_s:
        replica.model.observe_stream(101, 100 * usual_s, 500_000)
    replica.first_token(replica.begin(Match(Demand(10, is_stream=True)), clock.now()), clock.now())
    return replica


def is_in_time(replica: Replica, tokens: int, cached: int = 0, on_overload: str = "shed") -> bool:
    """Whether such a call is, which has 100 s to its first token and 100 ms to each other."""
    demand = Demand(tokens, is_stream=True, ends=(cached,))
    match = Match(demand, [(1 << replica.slot, 1)] if cached else ())
    policy = AdmissionPolicy.model_validate({"on_overload": on_overload})
    waiting = Waiting(demand, LIMITS, client="ann", priority=Priority.NORMAL, arrived_at=0.0)
    judge = AdmissionJudge(policy, LIMITS)
    return judge.is_in_time(replica, waiting, match, 0.0) and not judge.delays_streams(replica, waiting, match)


def test_judge_prompt_that_streams_cannot_make_up_for_is_not_in_time() -> None:
    """Long ones are turned away where streams have little to spare, and only there; what is cached takes no time."""
    assert not is_in_time(busy(0.08), LONG)
    assert is_in_time(busy(0.08), LONG, cached=LONG - SHORT)
    assert is_in_time(busy(0.08), SHORT)
    assert is_in_time(busy(0.03), LONG)


def test_judge_prompt_that_nobody_feels_is_in_time_though_streams_are_late() -> None:
    """Streams beyond their limit keep no short prompt away: else a backend that is too slow would get one at a time."""
    assert is_in_time(busy(0.5), SHORT)
    assert not is_in_time(busy(0.5), LONG)


def test_judge_prompt_spoils_nothing_where_no_stream_was_seen_or_all_are_served() -> None:
    """Answers that are not streamed have no gaps; and who lets callers wait for as long as it takes, serves them."""
    assert is_in_time(busy(0.0), LONG)
    assert is_in_time(busy(0.08), LONG, on_overload="queue")


@given(usual_ms=st.integers(1, 300), tokens=st.integers(1, 150_000), fewer=st.integers(0, 150_000))
def test_judge_shorter_prompts_and_faster_streams_are_never_judged_harder(
    usual_ms: int, tokens: int, fewer: int
) -> None:
    """Whoever lets a prompt in lets in what is shorter, and lets it in where streams are faster."""
    if is_in_time(busy(usual_ms / 1e3), tokens):
        assert is_in_time(busy(usual_ms / 1e3), max(1, tokens - fewer))
        assert is_in_time(busy(usual_ms / 2e3), tokens)


@pytest.mark.parametrize(("usual_s", "end"), [(0.08, "slo_shed"), (0.03, "answered")])
def test_judge_prompt_that_would_spoil_streams_is_told_so_at_once_and_holds_up_nobody(usual_s: float, end: str) -> None:
    """It does not stand in the line until its time is up, in front of all others."""

    async def main(clock: VirtualClock) -> None:
        limits: dict[str, Any] = {"ttft": "5s", "ttft_per_1k_prompt": "0s", "tpot": "100ms"}
        policy = {"slo": limits, "retry": {"attempts": 0}, "admission": {}}
        async with Site(clock, {"only": Desk("only", clock)}, all=policy) as site:
            replica = site.replicas[0]
            learned(replica)
            replica.model.observe_stream(101, 100 * usual_s, replica.cache_tokens)
            running = client(site.pool(), asking(clock=clock))
            await asyncio.sleep(0)
            long = asking(LONG, clock=clock)

            assert await answered(site.pool(), long) == end
            assert long.facts.waited_s == 0.0
            assert await running == "answered"
            assert site.is_at_rest()

    in_virtual_time(main)


@pytest.mark.parametrize("on_overload", ["shed", "queue"])
@pytest.mark.parametrize("asked", [Slo(3600.0, 0.0, 1e-9), Slo(1e-6, 0.0, 3600.0)], ids=["tokens", "first token"])
def test_judge_who_asks_for_more_than_the_route_promises_holds_up_nobody(asked: Slo, on_overload: str) -> None:
    """Where no backend ever keeps that, others do not wait behind it until one has nothing else to do."""

    async def main(clock: VirtualClock) -> None:
        limits: dict[str, Any] = {"ttft": "5s", "ttft_per_1k_prompt": "0s", "tpot": "100ms"}
        policy = {"slo": limits, "retry": {"attempts": 0}, "admission": {"on_overload": on_overload}}
        async with Site(clock, {"only": Desk("only", clock, first_s=1.0)}, all=policy) as site:
            replica = site.replicas[0]
            learned(replica)
            replica.model.observe_stream(101, 3.0, replica.cache_tokens)
            running = client(site.pool(), asking(clock=clock))
            await asyncio.sleep(0)
            greedy = client(site.pool(), asking(clock=clock, slo=asked, tenant="another"))
            await asyncio.sleep(0)
            other = asking(clock=clock)
            ends = [await answered(site.pool(), other), await running]
            await greedy

            assert ends == ["answered", "answered"]
            assert other.facts.waited_s == 0.0
            assert site.is_at_rest()

    in_virtual_time(main)


def test_judge_who_is_degraded_leaves_the_line_in_time_for_the_other_route() -> None:
    """It waits no longer than the other route can make up for, which takes a third of a second here."""

    async def main(clock: VirtualClock) -> None:
        common: dict[str, Any] = {
            "slo": {"ttft": "2s", "ttft_per_1k_prompt": "0s", "tpot": "10s"},
            "retry": {"attempts": 0},
        }
        own = {"admission": {"on_overload": "degrade", "degrade_to": "beyond"}, "backends": [{"ref": "own"}]}
        desks = {"own": Desk("own", clock, rest_s=100.0), "beyond": Desk("beyond", clock)}
        async with Site(
            clock, desks, own={**common, **own}, beyond={**common, "backends": [{"ref": "beyond"}]}
        ) as site:
            (replica,), routing = site.replicas, site.fleet.routing("beyond")
            assert routing is not None
            learned(replica)
            beyond = routing.replicas[0].model
            for number in range(20):
                beyond.observe(features(0.0, 10.0 + number, 10.0 + number, 0.0, 0.0), 1.0)
            takes_s = beyond.residual * routing.replicas[0].predict(10, 10)
            assert 0.3 < takes_s < 1.0
            replica.concurrency_limit, replica.concurrency_limit.has_refused = OneAtATime(), True
            running = client(site.pool(), asking(clock=clock))
            await asyncio.sleep(0)
            late = asking(clock=clock)

            assert await answered(site.pool(), late) == "slo_shed"
            assert late.facts.waited_s == pytest.approx(2.0 - takes_s, abs=0.01)
            running.cancel()

    in_virtual_time(main)

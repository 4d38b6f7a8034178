"""Gates in virtual time: nobody is lost, everything that is counted comes back to zero, and who is late is told so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import ConnectFailed, NoBackendAvailable, Overloaded
from backends.protocol import Call, Priority, Slo
from gateway.simulate.virtual_loop import VirtualClock
from tests.support.calls import make_call
from tests.support.policy.admission import Desk, OneAtATime, Site, answered, asking, client, in_virtual_time, learned
from tests.support.policy.pool import error_reply

SLO = {"ttft": "2s", "ttft_per_1k_prompt": "0s", "tpot": "1s"}
NO_RETRY = {"attempts": 0}


def route(**admission: Any) -> dict[str, Any]:
    """A route with these limits and no retries."""
    return {"slo": SLO, "retry": NO_RETRY, "admission": admission}


CALLER = st.fixed_dictionaries(
    {
        "at": st.integers(0, 30),
        "tokens": st.integers(10, 4000),
        "tenant": st.sampled_from(["ann", "bob", "cyd"]),
        "priority": st.sampled_from(Priority),
        "patience": st.none() | st.integers(0, 40),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    callers=st.lists(CALLER, min_size=1, max_size=30),
    num_desks=st.integers(1, 3),
    first=st.integers(1, 30),
    rest=st.integers(0, 30),
    on_overload=st.sampled_from(["shed", "queue"]),
    max_waiting=st.integers(1, 12),
    known=st.booleans(),
    failures=st.lists(st.sampled_from([429, 500, "down"]), max_size=8),
)
def test_admission_every_caller_has_one_end_and_nothing_stays_counted(
    callers: list[dict[str, Any]],
    num_desks: int,
    first: int,
    rest: int,
    on_overload: str,
    max_waiting: int,
    known: bool,
    failures: list[int | str],
) -> None:
    """Answered, turned away or gone, whatever comes together in one moment; told in time; all loads back at zero."""

    async def main(clock: VirtualClock) -> None:
        outcomes = [ConnectFailed("down") if each == "down" else int(each) for each in failures]
        desks = {
            f"d{number}": Desk(f"d{number}", clock, *outcomes[number::num_desks], first_s=first / 10, rest_s=rest / 10)
            for number in range(num_desks)
        }
        policy = route(on_overload=on_overload, max_wait="1s", max_waiting=max_waiting)
        async with Site(clock, desks, all=policy) as site:
            if known:
                for replica in site.replicas:
                    learned(replica)
            ends: list[str] = []
            tasks = []

            async def ask(of: dict[str, Any]) -> None:
                call = asking(of["tokens"], clock=clock, tenant=of["tenant"], priority=of["priority"])
                began = clock.now()
                try:
                    end = await answered(site.pool(), call)
                except asyncio.CancelledError:
                    ends.append("left")
                    raise
                ends.append(end)
                waited_s = call.facts.waited_s
                assert waited_s is not None
                assert waited_s <= (1.0 if on_overload == "queue" else 2.0) + 1e-9
                if end == "slo_shed":
                    assert clock.now() - began == pytest.approx(waited_s, abs=1e-9)

            for of in sorted(callers, key=lambda each: int(each["at"])):
                await clock.sleep(max(0.0, of["at"] / 10 - clock.now()))
                task = asyncio.get_running_loop().create_task(ask(of))
                tasks.append(task)
                if of["patience"] is not None:
                    asyncio.get_running_loop().call_later(of["patience"] / 10, task.cancel)
            await asyncio.gather(*tasks, return_exceptions=True)
            lost = [task.exception() for task in tasks if not task.cancelled() and task.exception() is not None]
            assert lost == []
            # Who is cancelled before it has begun says nothing.
            assert len(ends) + sum(task.cancelled() for task in tasks) - ends.count("left") == len(callers)
            assert site.is_at_rest()
            assert all(desk.busy == 0 for desk in desks.values())
            assert sum(site.gate.statistics().shed.values()) == ends.count("slo_shed")
            assert set(ends) <= {"answered", "left", "slo_shed", "429", "500", "upstream_unreachable"} | {
                "no_backend_available"
            }
        assert all(replica.in_flight.watchers == () for replica in site.replicas)

    in_virtual_time(main)


def test_admission_client_that_leaves_as_it_is_called_up_takes_nothing_with_it() -> None:
    """Its task has been cancelled and has not run yet when room comes: the next one gets the place."""

    async def main(clock: VirtualClock) -> None:
        desk = Desk("only", clock, first_s=1.0, rest_s=0.0)
        async with Site(clock, {"only": desk}, all=route(on_overload="queue")) as site:
            limit = int(site.replicas[0].concurrency_limit.limit)
            first = [client(site.pool(), asking(clock=clock)) for _ in range(limit)]
            await clock.sleep(0.5)
            leaving, staying = (client(site.pool(), asking(clock=clock)) for _ in range(2))
            await asyncio.sleep(0)
            assert site.gate.statistics().waiting == 2

            leaving.cancel()
            site.replicas[0].concurrency_limit.limit += 1
            site.admission.dispatch()
            assert site.gate.statistics().waiting == 0
            ends = await asyncio.gather(*first, leaving, staying, return_exceptions=True)

            assert ends[:limit] == ["answered"] * limit
            assert isinstance(ends[-2], asyncio.CancelledError)
            assert ends[-1] == "answered"
            assert site.is_at_rest()

    in_virtual_time(main)


def test_admission_client_that_leaves_after_it_was_called_up_gives_its_place_back() -> None:
    """Between being called up and going its attempt has begun already: it ends, and the next one goes."""

    async def main(clock: VirtualClock) -> None:
        desk = Desk("only", clock, first_s=1.0, rest_s=0.0)
        async with Site(clock, {"only": desk}, all=route(on_overload="queue")) as site:
            replica = site.replicas[0]
            replica.concurrency_limit.limit = 1.0
            first = client(site.pool(), asking(clock=clock))
            await clock.sleep(0.5)
            leaving, staying = (client(site.pool(), asking(clock=clock)) for _ in range(2))
            await asyncio.sleep(0)
            replica.concurrency_limit.limit = 2.0
            site.admission.dispatch()
            assert (replica.in_flight.requests, site.gate.statistics().waiting) == (2, 1)
            leaving.cancel()
            ends = await asyncio.gather(first, leaving, staying, return_exceptions=True)

            assert [end if isinstance(end, str) else type(end) for end in ends] == [
                "answered",
                asyncio.CancelledError,
                "answered",
            ]
            assert len(desk.calls) == 2
            assert site.is_at_rest()

    in_virtual_time(main)


def test_admission_idle_backend_takes_even_what_will_be_late() -> None:
    """Nobody waits for it, and only so is a wrong prediction found out."""

    async def main(clock: VirtualClock) -> None:
        async with Site(clock, {"only": Desk("only", clock)}, all=route()) as site:
            learned(site.replicas[0])
            big = asking(1_000_000, clock=clock)
            assert site.replicas[0].predict(1_000_000, 1_000_000) > 2.0

            assert await answered(site.pool(), big) == "answered"
            assert big.facts.waited_s == 0.0

    in_virtual_time(main)


def test_admission_call_that_one_backend_keeps_is_judged_by_that_one_alone() -> None:
    """Another backend that has nothing to do is no reason to let it wait, or to promise it an earlier answer."""

    async def main(clock: VirtualClock) -> None:
        desks = {"one": Desk("one", clock), "other": Desk("other", clock)}
        async with Site(clock, desks, all=route()) as site:
            for replica in site.replicas:
                learned(replica)
            running = client(site.pool(), asking(clock=clock, pinned="one"))
            await asyncio.sleep(0)
            busy = next(replica for replica in site.replicas if replica.in_flight.requests)
            with pytest.raises(Overloaded) as caught:
                await site.pool().send(asking(70_000, clock=clock, pinned="one"))

            assert caught.value.first_token_s == pytest.approx(busy.predict(70_000, 70_000))
            assert await running == "answered"
            assert not desks["other"].calls

    in_virtual_time(main)


def test_admission_busy_backend_sheds_what_would_be_late_at_once() -> None:
    """There is room, and still its first token could not come in time: told so without waiting, with when it would."""

    async def main(clock: VirtualClock) -> None:
        async with Site(clock, {"only": Desk("only", clock)}, all=route()) as site:
            learned(site.replicas[0])
            running = client(site.pool(), asking(clock=clock))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded) as caught:
                await site.pool().send(asking(70_000, clock=clock))

            assert clock.now() == 0.0
            error = caught.value
            assert (error.status, error.code) == (429, "slo_shed")
            assert error.first_token_s == pytest.approx(site.replicas[0].predict(70_000, 70_000))
            assert error.retry_after_s is not None
            # Nothing has been sent off while somebody waited, so nothing is known but the limit.
            assert 2.0 <= error.retry_after_s <= 3.0
            assert site.gate.statistics().shed == {"late": 1}
            assert await running == "answered"

    in_virtual_time(main)


def test_admission_who_waits_is_shed_when_even_an_idle_backend_would_be_late() -> None:
    """At its deadline less what its prompt takes alone."""

    async def main(clock: VirtualClock) -> None:
        async with Site(clock, {"only": Desk("only", clock, first_s=30.0)}, all=route()) as site:
            replica = site.replicas[0]
            learned(replica)
            running = client(site.pool(), asking(60_000, clock=clock))
            await asyncio.sleep(0)
            call = asking(10_000, clock=clock)
            with pytest.raises(Overloaded):
                await site.pool().send(call)

            alone_s = replica.predict_alone(10_000, 10_000)
            assert clock.now() == pytest.approx(2.0 - alone_s, rel=1e-3)
            assert call.facts.waited_s == pytest.approx(clock.now())
            assert await running == "answered"

    in_virtual_time(main)


def test_admission_call_that_has_waited_already_is_due_no_later_for_it() -> None:
    """A call that comes again, or from another route's line, waits for what is left of its time."""

    async def main(clock: VirtualClock) -> None:
        async with Site(clock, {"only": Desk("only", clock, first_s=30.0)}, all=route()) as site:
            site.replicas[0].concurrency_limit = OneAtATime()
            running = client(site.pool(), asking(clock=clock))
            await asyncio.sleep(0)
            call = asking(clock=clock)
            call.facts.waited_s = 1.5

            assert await answered(site.pool(), call) == "slo_shed"
            assert clock.now() == pytest.approx(0.5)
            assert call.facts.waited_s == pytest.approx(2.0)
            assert await running == "answered"

    in_virtual_time(main)


def test_admission_idle_backend_takes_what_another_one_would_answer_too_late() -> None:
    """Whose turn it is may be busy; where somebody has nothing to do nobody is turned away."""

    async def main(clock: VirtualClock) -> None:
        desks = {"busy": Desk("busy", clock, first_s=30.0), "idle": Desk("idle", clock, first_s=0.1, rest_s=0.0)}
        policy = route() | {"routing": {"policy": "round_robin"}}
        async with Site(clock, desks, all=policy) as site:
            for replica in site.replicas:
                learned(replica)
            running = client(site.pool(), asking(clock=clock))
            await asyncio.sleep(0)
            assert await answered(site.pool(), asking(clock=clock)) == "answered"

            assert await answered(site.pool(), asking(70_000, clock=clock)) == "answered"
            assert [len(desk.calls) for desk in desks.values()] == [1, 2]
            assert await running == "answered"

    in_virtual_time(main)


def test_admission_queue_waits_as_long_as_it_may_and_no_longer() -> None:
    """With `on_overload: queue` a late answer is better than none, up to `max_wait`."""

    async def main(clock: VirtualClock) -> None:
        desk = Desk("only", clock, first_s=4.0, rest_s=0.0)
        async with Site(clock, {"only": desk}, all=route(on_overload="queue", max_wait="5s")) as site:
            site.replicas[0].concurrency_limit.limit = 1.0
            tasks = [client(site.pool(), asking(clock=clock)) for _ in range(3)]

            assert await asyncio.gather(*tasks) == ["answered", "answered", "slo_shed"]
            assert site.gate.statistics().shed == {"waited": 1}
            assert clock.now() == pytest.approx(8.0)

    in_virtual_time(main)


def test_admission_call_that_must_end_earlier_waits_no_longer_than_that() -> None:
    """Nobody waits beyond the deadline of its call."""

    async def main(clock: VirtualClock) -> None:
        desk = Desk("only", clock, first_s=4.0)
        async with Site(clock, {"only": desk}, all=route(on_overload="queue", max_wait="1m")) as site:
            site.replicas[0].concurrency_limit.limit = 1.0
            running = client(site.pool(), asking(clock=clock))
            await asyncio.sleep(0)

            assert await answered(site.pool(), asking(clock=clock, total_s=3.0)) == "slo_shed"
            assert clock.now() == pytest.approx(3.0)
            assert await running == "answered"

    in_virtual_time(main)


def test_admission_full_line_makes_the_greediest_pay() -> None:
    """Who has most waiting loses its last; who has no less than anybody is turned away itself."""

    async def main(clock: VirtualClock) -> None:
        desk = Desk("only", clock, first_s=1.0, rest_s=0.0)
        async with Site(clock, {"only": desk}, all=route(on_overload="queue", max_waiting=3)) as site:
            site.replicas[0].concurrency_limit.limit = 1.0
            running = client(site.pool(), asking(clock=clock))
            await asyncio.sleep(0)
            greedy = [client(site.pool(), asking(clock=clock, tenant="greedy")) for _ in range(4)]
            await asyncio.sleep(0)
            assert await greedy[3] == "slo_shed"
            modest = [client(site.pool(), asking(clock=clock, tenant="modest")) for _ in range(2)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)

            assert await greedy[2] == "slo_shed"
            assert await modest[1] == "slo_shed"
            urgent = client(site.pool(), asking(clock=clock, tenant="greedy", priority=Priority.HIGH))
            assert await asyncio.gather(running, urgent, *greedy[:2], modest[0]) == [
                *("answered", "answered", "answered", "slo_shed", "answered")
            ]
            assert site.gate.statistics().shed == {"full": 4}
            assert site.is_at_rest()

    in_virtual_time(main)


def test_admission_prompt_longer_than_all_that_may_wait_drives_nobody_out() -> None:
    """It is turned away itself, and whoever waits stays."""

    async def main(clock: VirtualClock) -> None:
        desk = Desk("only", clock, rest_s=0.0)
        async with Site(clock, {"only": desk}, all=route(on_overload="queue", max_waiting_tokens=1000)) as site:
            site.replicas[0].concurrency_limit.limit = 1.0
            tasks = [client(site.pool(), asking(clock=clock, tenant="small")) for _ in range(3)]
            await asyncio.sleep(0)

            assert await answered(site.pool(), asking(2000, clock=clock, tenant="huge")) == "slo_shed"
            assert await asyncio.gather(*tasks) == ["answered"] * 3

    in_virtual_time(main)


def test_admission_high_priority_goes_before_all_others() -> None:
    """Whoever came first: classes are strict."""

    async def main(clock: VirtualClock) -> None:
        desk = Desk("only", clock, rest_s=0.0)
        async with Site(clock, {"only": desk}, all=route(on_overload="queue")) as site:
            site.replicas[0].concurrency_limit.limit = 1.0
            order: list[Priority] = []

            async def ask(priority: Priority) -> None:
                await answered(site.pool(), asking(clock=clock, priority=priority))
                order.append(priority)

            async with asyncio.TaskGroup() as callers:
                for priority in (Priority.NORMAL, Priority.LOW, Priority.NORMAL, Priority.HIGH):
                    callers.create_task(ask(priority))

            assert order == [Priority.NORMAL, Priority.HIGH, Priority.NORMAL, Priority.LOW]

    in_virtual_time(main)


def test_admission_lower_priority_leaves_room_while_higher_ones_come() -> None:
    """Alone it may queue at a backend; once a high one has come, it waits at the gate, until that was long ago."""

    async def main(clock: VirtualClock) -> None:
        async with Site(clock, {"only": Desk("only", clock, first_s=0.5)}, all=route()) as site:
            learned(site.replicas[0])

            async def stand_in_line() -> int:
                """Two prompts of 0.25 s each; how many of them wait at the gate."""
                asked = [client(site.pool(), asking(10_000, clock=clock)) for _ in range(2)]
                await asyncio.sleep(0)
                waiting = len(site.gate.queue)
                assert await asyncio.gather(*asked) == ["answered", "answered"]
                return waiting

            assert await stand_in_line() == 0
            assert await client(site.pool(), asking(clock=clock, priority=Priority.HIGH)) == "answered"
            assert await stand_in_line() == 1
            await clock.sleep(30.0)
            assert await stand_in_line() == 0

    in_virtual_time(main)


def test_admission_time_that_a_caller_brings_fills_no_backend_for_others() -> None:
    """Who says that an hour is soon enough may wait for it, but not in front of the others at a backend."""

    async def main(clock: VirtualClock) -> None:
        async with Site(clock, {"only": Desk("only", clock, first_s=5.0)}, all=route()) as site:
            replica = site.replicas[0]
            learned(replica)
            patient = Slo(3600.0, 0.0, 3600.0)
            tasks = [client(site.pool(), asking(15_000, clock=clock, slo=patient)) for _ in range(20)]
            await asyncio.sleep(0)

            # The route's 2 s, and not the hour.
            assert replica.in_flight.waiting_tokens * replica.model.seconds_per_token < 2.0
            assert site.gate.statistics().waiting > 15
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert site.is_at_rest()

    in_virtual_time(main)


def test_admission_retry_after_is_the_time_that_the_line_needs() -> None:
    """What is measured at a steady pace is what the next one is told, and a pause since then changes nothing."""

    async def main(clock: VirtualClock) -> None:
        desk = Desk("only", clock, first_s=0.5, rest_s=0.0)
        async with Site(clock, {"only": desk}, all=route(on_overload="queue", max_waiting=20)) as site:
            site.replicas[0].concurrency_limit = OneAtATime()
            site.replicas[0].concurrency_limit.has_refused = True
            for _ in range(2):
                tasks = [client(site.pool(), asking(1000, clock=clock)) for _ in range(21)]
                await clock.sleep(5.25)
                more = [client(site.pool(), asking(1000, clock=clock)) for _ in range(12)]
                await asyncio.sleep(0)
                call = asking(1000, clock=clock)
                with pytest.raises(Overloaded) as caught:
                    await site.pool().send(call)
                assert caught.value.retry_after_s is not None
                # 20 stand there, half a second each, and the one that asks; times 1 to 1.5: not all come back at once.
                assert 0.9 * 10.5 <= caught.value.retry_after_s <= 1.1 * 10.5 * 1.5
                for task in tasks + more:
                    task.cancel()
                await asyncio.gather(*tasks, *more, return_exceptions=True)
                await clock.sleep(600.0)

    in_virtual_time(main)


def test_admission_first_refusal_after_a_pause_does_not_count_the_pause() -> None:
    """Backends that had nothing to do for an hour have not become slow."""

    async def main(clock: VirtualClock) -> None:
        async with Site(clock, {"only": Desk("only", clock, first_s=0.1, rest_s=0.0)}, all=route()) as site:
            replica = site.replicas[0]
            replica.concurrency_limit = OneAtATime()
            await asyncio.gather(*(client(site.pool(), asking(1000, clock=clock)) for _ in range(20)))
            learned(replica)
            await clock.sleep(3600.0)
            running = client(site.pool(), asking(1000, clock=clock))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded) as caught:
                await site.pool().send(asking(70_000, clock=clock))

            assert caught.value.retry_after_s is not None
            # 70,000 tokens at about 10,000 a second.
            assert 5.0 < caught.value.retry_after_s < 15.0
            await running

    in_virtual_time(main)


def test_admission_429_with_a_pause_is_kept_and_its_line_waits_for_it() -> None:
    """Nothing goes to a backend that said when to come again; then what waits goes there."""

    async def main(clock: VirtualClock) -> None:
        desk = Desk("only", clock, error_reply(429, retry_after="1"), first_s=0.1, rest_s=0.0)
        async with Site(clock, {"only": desk}, all=route()) as site:
            learned(site.replicas[0])
            assert await answered(site.pool(), asking(clock=clock)) == "429"
            call = asking(clock=clock)
            assert await answered(site.pool(), call) == "answered"

            assert call.facts.waited_s == pytest.approx(1.0, abs=0.1 + 1e-6)
            assert site.replicas[0].concurrency_limit.has_refused
            assert site.is_at_rest()

    in_virtual_time(main)


def test_admission_backend_out_of_rotation_gets_nothing_and_503_is_only_said_when_all_are() -> None:
    """The other one is asked, and waited for where it is full."""

    async def main(clock: VirtualClock) -> None:
        bad, good = (Desk(name, clock, rest_s=0.0) for name in ("bad", "good"))
        bad.outcomes = [ConnectFailed("down")] * 3
        good.outcomes = []
        policy = route(on_overload="queue") | {
            "circuit_breaker": {"consecutive_failures": 1, "open_for": "60s", "max_ejection_percent": 100}
        }
        async with Site(clock, {"bad": bad, "good": good}, all=policy) as site:
            for replica in site.replicas:
                replica.concurrency_limit.limit = 1.0
            while "bad" not in {name for name, state in site.pool().breaker_states().items() if state == "open"}:
                await answered(site.pool(), asking(clock=clock))
            asked = len(bad.calls)
            tasks = [client(site.pool(), asking(clock=clock)) for _ in range(3)]
            assert await asyncio.gather(*tasks) == ["answered"] * 3
            assert len(bad.calls) == asked

            good.outcomes = [ConnectFailed("down")] * 3
            tasks = [client(site.pool(), asking(clock=clock)) for _ in range(3)]
            ends = await asyncio.gather(*tasks)
            assert sorted(ends) == ["no_backend_available", "no_backend_available", "upstream_unreachable"]
            with pytest.raises(NoBackendAvailable) as caught:
                await site.pool().send(asking(clock=clock))
            assert caught.value.retry_after_s is not None
            assert caught.value.retry_after_s > 0
            assert site.is_at_rest()

    in_virtual_time(main)


def test_admission_half_open_backend_is_tried_by_one_of_those_who_wait() -> None:
    """All of the line may be called up in one moment; a breaker that lets one in lets one in."""

    async def main(clock: VirtualClock) -> None:
        back, busy = Desk("back", clock, ConnectFailed("down"), rest_s=0.0), Desk("busy", clock, first_s=30.0)
        policy = route(on_overload="queue", max_wait="60s") | {
            "circuit_breaker": {"consecutive_failures": 1, "open_for": "5s", "half_open_max": 1, "slow_start": "0s"}
        }
        async with Site(clock, {"back": back, "busy": busy}, all=policy) as site:
            first: list[asyncio.Task[str]] = []
            while not back.calls:
                first.append(client(site.pool(), asking(clock=clock)))
                await asyncio.sleep(0)
            site.replicas[1].concurrency_limit.limit = 1.0
            back.first_s = 1.0
            tasks = [client(site.pool(), asking(clock=clock)) for _ in range(6)]
            await clock.sleep(5.5)
            assert back.busy == 1
            ends = await asyncio.gather(*tasks)

            assert ends == ["answered"] * 6
            await asyncio.gather(*first)
            assert site.is_at_rest()

    in_virtual_time(main)


def test_admission_weights_are_kept_however_often_a_full_pool_is_looked_at() -> None:
    """Looking for somebody with room is no turn of theirs."""

    async def main(clock: VirtualClock) -> None:
        desks = {name: Desk(name, clock, first_s=0.1, rest_s=0.0) for name in ("a", "b")}
        policy = route(on_overload="queue", max_wait="1h") | {
            "backends": [{"ref": "a", "weight": 2}, {"ref": "b", "weight": 1}],
            "routing": {"policy": "weighted"},
        }
        async with Site(clock, desks, all=policy) as site:
            for replica in site.replicas:
                replica.concurrency_limit.limit = 1.0
            # One at a time, each after looks at a pool that was full.
            for _ in range(30):
                site.replicas[0].concurrency_limit.limit = site.replicas[1].concurrency_limit.limit = 0.0
                task = client(site.pool(), asking(clock=clock))
                await clock.sleep(0.05)
                site.replicas[0].concurrency_limit.limit = site.replicas[1].concurrency_limit.limit = 1.0
                for replica in site.replicas:
                    replica.concurrency_limit._paused_until = -1.0
                await task

            assert (len(desks["a"].calls), len(desks["b"].calls)) == (20, 10)

    in_virtual_time(main)


def test_admission_reload_lets_both_lines_be_served_and_leaves_no_watcher() -> None:
    """The old policy's callers and the new one's are called up by the same backends, each by its own."""

    async def main(clock: VirtualClock) -> None:
        desks = {"only": Desk("only", clock, rest_s=0.0)}
        old = Site(clock, desks, all=route(on_overload="queue"))
        new = Site(clock, desks, previous=old, all=route(on_overload="queue", max_waiting=7))
        assert new.replicas == old.replicas
        replica = old.replicas[0]
        async with new:
            async with old:
                replica.concurrency_limit.limit = 1.0
                tasks = [client(site.pool(), asking(clock=clock)) for site in (old, new, old, new)]
                await asyncio.sleep(0)
                assert len(replica.in_flight.watchers) == 2
                assert await asyncio.gather(*tasks) == ["answered"] * 4
            assert not replica.in_flight.watchers
            assert await answered(new.pool(), asking(clock=clock)) == "answered"
        assert replica.in_flight.watchers == ()

    in_virtual_time(main)


def test_admission_closed_leaves_no_timer() -> None:
    """Whatever was set to look again is taken back, and closing twice does no harm."""

    async def main(clock: VirtualClock) -> None:
        site = Site(clock, {"only": Desk("only", clock, first_s=5.0)}, all=route(on_overload="queue"))
        await site.admission.open()
        site.replicas[0].concurrency_limit.limit = 1.0
        tasks = [client(site.pool(), asking(clock=clock)) for _ in range(2)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await site.admission.aclose()
        await site.admission.aclose()

        assert site.is_at_rest()
        assert site.replicas[0].in_flight.watchers == ()
        timers = [timer for _, _, timer in asyncio.get_running_loop()._timers if not timer.cancelled()]  # type: ignore[attr-defined]
        # What is left is the desk's own sleep, which was cancelled with its caller.
        assert [timer for timer in timers if "Admission" in repr(timer)] == []

    in_virtual_time(main)


class Talks:
    """Prompts of one letter at two backends with room for 6,000 tokens each, on a route where nobody is turned away."""

    def __init__(self, site: Site, desks: dict[str, Desk], clock: VirtualClock) -> None:
        self.calls: list[Call] = []
        self.tasks: list[asyncio.Future[str]] = []
        self._site = site
        self._desks = desks
        self._clock = clock
        for replica in site.replicas:
            learned(replica)
            replica.resize(6000)

    async def send(
        self, tenant: str, letter: str, tokens: int, *, rest_s: float = 60.0, only: int | None = None
    ) -> None:
        """The next one, whose answer takes so long; to one backend, where the other is said to have no room."""
        for desk in self._desks.values():
            desk.rest_s = rest_s
        for index, replica in enumerate(self._site.replicas):
            replica.cache_tokens = 6000 if only in (index, None) else 1
        call = make_call(letter * 4 * tokens, stream=True, deadline=self._clock.now() + 1000, tenant=tenant)
        self.calls.append(call)
        self.tasks.append(asyncio.ensure_future(answered(self._site.pool(), call)))
        await self._clock.sleep(0.2)


def _two_desks(clock: VirtualClock) -> tuple[Site, dict[str, Desk]]:
    desks = {name: Desk(name, clock, first_s=0.1) for name in ("one", "two")}
    limits = {"ttft": "40s", "ttft_per_1k_prompt": "0s", "tpot": "1s"}
    gate = {"on_overload": "queue", "max_wait": "60s"}
    return Site(clock, desks, all={"slo": limits, "retry": NO_RETRY, "admission": gate}), desks


def test_admission_call_without_room_holds_up_no_other_of_its_client() -> None:
    """Of one client's calls the one goes that gains most by it; not one for which there is room nowhere."""

    async def main(clock: VirtualClock) -> None:
        site, desks = _two_desks(clock)
        async with site:
            talks = Talks(site, desks, clock)
            await talks.send("ann", "c", 3000, only=0)
            await talks.send("bob", "y", 2200, only=1)
            await talks.send("bob", "z", 3000, only=1, rest_s=5.0)
            await talks.send("ann", "c", 3050)
            await talks.send("ann", "q", 5500)

            assert [await task for task in talks.tasks] == ["answered"] * 5
            assert [round(call.facts.waited_s or 0.0) for call in talks.calls[:4]] == [0, 0, 0, 5]

    in_virtual_time(main)


def test_admission_call_whose_backend_is_out_of_rotation_holds_up_no_other_of_its_client() -> None:
    """What it would gain there is of no use now, so the first one goes where it can."""

    async def main(clock: VirtualClock) -> None:
        site, desks = _two_desks(clock)
        async with site:
            talks = Talks(site, desks, clock)
            await talks.send("ann", "q", 5000, only=0, rest_s=4.0)
            await talks.send("bob", "y", 2200, only=1)
            await talks.send("bob", "z", 3000, only=1, rest_s=5.0)
            await talks.send("ann", "d", 2900)
            await talks.send("ann", "q", 5500)
            [breaker] = site.pool().breakers_of(desks["one"])
            breaker.mark_down(30.0)

            assert [await task for task in talks.tasks] == ["answered"] * 5
            assert talks.calls[3].facts.backend == "two"
            assert (talks.calls[3].facts.waited_s or 0.0) < 6

    in_virtual_time(main)


def test_admission_routes_that_share_backends_are_served_by_who_is_due() -> None:
    """Each has its own line and limits; whoever is next among all of them goes first."""

    async def main(clock: VirtualClock) -> None:
        desks = {"only": Desk("only", clock, rest_s=0.0)}
        async with Site(
            clock, desks, fast=route(on_overload="queue"), slow=route(on_overload="queue", max_waiting=9)
        ) as site:
            site.replicas[0].concurrency_limit.limit = 1.0
            order: list[str] = []

            async def ask(name: str, priority: Priority) -> None:
                await answered(site.pools[name], asking(clock=clock, priority=priority, tenant=name))
                order.append(f"{name}-{priority.name}")

            async with asyncio.TaskGroup() as callers:
                for name, priority in (
                    ("fast", Priority.NORMAL),
                    ("fast", Priority.LOW),
                    ("slow", Priority.NORMAL),
                    ("slow", Priority.HIGH),
                ):
                    callers.create_task(ask(name, priority))
            assert order == ["fast-NORMAL", "slow-HIGH", "slow-NORMAL", "fast-LOW"]

    in_virtual_time(main)

"""The fleet: which routes share replicas, what a reload takes over, what a restart reads back; and pools on top."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from backends.charges.usage import Usage
from backends.errors import ConfigurationError, ConnectFailed
from backends.kv_events import KvEventsConfig
from backends.protocol import Call, Reply
from backends.stream import Stream, StreamEnd
from policies.pool.load.demand import Demand
from policies.pool.load.fleet import Fleet, is_balanced_by_load
from policies.pool.load.match import Match
from policies.pool.load.replica import Replica
from policies.pool.member import Member
from policies.pool.pool import Pool
from policies.pool.prompts.engine_text import EngineText, Writing
from policies.prices.source import SetPrice
from policies.schema import RoutePolicy
from tests.support.calls import make_call
from tests.support.clock import FakeClock
from tests.support.policy.places import depths
from tests.support.policy.pool import Pieces, Played, StoppedClock, stream_reply


def _route(name: str, *backends: str | dict[str, Any], **sections: Any) -> RoutePolicy:
    parts = [{"ref": part} if isinstance(part, str) else part for part in backends]
    return RoutePolicy.model_validate({"name": name, "match": {"models": ["*"]}, "backends": parts, **sections})


def _by(policy: str) -> dict[str, Any]:
    return {"policy": policy}


def _leaves(*names: str) -> dict[str, Played]:
    return {name: Played(name) for name in names}


def _teach(replica: Replica, number: int = 30) -> None:
    for _ in range(number):
        attempt = replica.begin(Match(Demand(1000, is_stream=True)), 0.0)
        replica.first_token(attempt, 0.25)
        attempt.end()


@pytest.mark.parametrize(
    ("backends", "routing", "balance", "by_load"),
    [
        (["a"], None, "weighted", False),
        (["a", "b"], None, "predicted_cost", True),
        ([{"ref": "a", "weight": 9}, {"ref": "b", "weight": 1}], None, "weighted", False),
        (["a", {"ref": "b", "priority": 1}], None, "weighted", False),
        (["a", {"ref": "b", "weight": 0}], None, "weighted", False),
        ([{"ref": "a", "weight": 5}, {"ref": "b", "weight": 5}], None, "predicted_cost", True),
        (["a", "b"], "weighted", "weighted", False),
        (["a", "b"], "round_robin", "round_robin", False),
        (["a", "b"], "p2c", "p2c", True),
        (["a"], "p2c", "p2c", False),
    ],
    ids=str,
)
def test_route_balances_by_load_only_where_there_is_a_choice(
    backends: list[str | dict[str, Any]], routing: str | None, balance: str, by_load: bool
) -> None:
    """One backend, or one of each priority, costs nothing; unequal weights are shares that somebody asked for."""
    route = _route("r", *backends, **({"routing": _by(routing)} if routing else {}))

    assert (route.balance, is_balanced_by_load(route)) == (balance, by_load)


def test_fleet_watches_every_route_of_a_backend_that_one_balances() -> None:
    """What another route sends to a shared backend counts; a route that shares none has no part in it."""
    routes = [_route("pool", "a", "b"), _route("own", "a"), _route("apart", "c")]
    fleet = Fleet(routes, _leaves("a", "b", "c"), StoppedClock(), random=Random(1))
    pool, own = fleet.routing("pool"), fleet.routing("own")

    assert pool is not None
    assert own is not None
    assert own.replicas == pool.replicas[:1]
    assert fleet.routing("apart") is None
    assert fleet.names == {"a", "b"}


def test_fleet_replicas_differ_by_the_model_that_a_route_asks_for() -> None:
    """A hosted API's models are as good as different servers."""
    parts = [{"ref": "a", "model": "small"}, {"ref": "a", "model": "large"}]
    fleet = Fleet([_route("r", *parts)], _leaves("a"), StoppedClock(), random=Random(1))

    assert fleet.names == {"a:small", "a:large"}


def test_fleet_cache_is_as_large_as_the_largest_that_a_route_says() -> None:
    """Two routes may say it of the same backend."""
    sizes = ({"routing": {"cache_tokens": size}} for size in (1000, 5000, 3000))
    routes = [_route(f"r{place}", "a", "b", **size) for place, size in enumerate(sizes)]
    routing = Fleet(routes, _leaves("a", "b"), StoppedClock(), random=Random(1)).routing("r0")

    assert routing is not None
    assert [replica.cache_tokens for replica in routing.replicas] == [5000, 5000]


async def test_fleet_reload_takes_over_replicas_whose_backend_stays() -> None:
    """What was learned, what is in flight and what is cached stay; a backend that was built anew begins anew."""
    leaves = _leaves("a", "b")
    old = Fleet([_route("r", "a", "b")], leaves, StoppedClock(), random=Random(1))
    before = old.routing("r")
    assert before is not None
    _teach(before.replicas[0])
    changed = {"a": leaves["a"], "b": Played("b")}
    new = Fleet([_route("r", "a", "b")], changed, StoppedClock(), random=Random(1), previous=old)
    after = new.routing("r")
    assert after is not None
    await old.aclose()
    await old.aclose()
    before.replicas[1].begin(Match(Demand(64, is_stream=True)), 0.0)
    after.replicas[1].begin(Match(Demand(64, is_stream=True, blocks=[5], ends=[64])), 0.0)

    assert after.replicas[0] is before.replicas[0]
    assert after.replicas[1] is not before.replicas[1]
    assert after.replicas[0].model.doubt is None
    assert depths(new.index, [5]) == {after.replicas[1].slot: 1}
    await new.aclose()
    assert depths(new.index, [5]) == {}


def _no_writing(folder: str) -> Writing:
    raise AssertionError("nobody asks")


async def test_fleet_that_cannot_be_made_holds_nothing() -> None:
    """Its first route is good, its second one is not."""
    leaves = _leaves("a", "b", "c")
    texts = {name: EngineText(KvEventsConfig(endpoint="tcp://h:1", tokenizer=name), _no_writing) for name in "ac"}
    old = Fleet([_route("r", "a", "b")], leaves, StoppedClock(), random=Random(1))
    routing = old.routing("r")
    assert routing is not None
    routes = [_route("r", "a", "b"), _route("s", "a", "c")]
    with pytest.raises(ConfigurationError, match="one way only"):
        Fleet(routes, leaves, StoppedClock(), random=Random(1), previous=old, texts=texts)
    routing.replicas[0].begin(Match(Demand(64, is_stream=True, blocks=[5], ends=[64])), 0.0)
    await old.aclose()

    assert depths(old.index, [5]) == {}


async def test_fleet_learned_models_outlive_a_restart(tmp_path: Path) -> None:
    """Written at the end, read at the beginning; only models that can be asked are kept."""
    folder = tmp_path / "state"
    first = Fleet([_route("r", "a", "b")], _leaves("a", "b"), StoppedClock(), random=Random(1), folder=str(folder))
    await first.open()
    routing = first.routing("r")
    assert routing is not None
    _teach(routing.replicas[0])
    await first.aclose()
    second = Fleet([_route("r", "a", "b")], _leaves("a", "b"), StoppedClock(), random=Random(1), folder=str(folder))
    await second.open()

    assert [file.name for file in folder.iterdir()] == ["latency.json"]
    assert set(json.loads((folder / "latency.json").read_text())) == {"a"}
    assert [replica.doubt for replica in second.statistics()] == [None, "unseen"]


@pytest.mark.parametrize(
    "content",
    [b"", b"not json", b"[]", b'{"a": 7}', b'{"a": {"weights": []}}', b"\xff\xfe", b'{"a": null}'],
    ids=str,
)
async def test_fleet_damaged_state_is_learned_anew(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that nobody can read stops nothing, and is said."""
    (tmp_path / "latency.json").write_bytes(content)
    fleet = Fleet([_route("r", "a", "b")], _leaves("a", "b"), StoppedClock(), random=Random(1), folder=str(tmp_path))
    with caplog.at_level(logging.WARNING):
        await fleet.open()

    assert [replica.doubt for replica in fleet.statistics()] == ["unseen", "unseen"]
    assert "learned anew" in caplog.text


async def test_fleet_folder_that_cannot_be_is_refused_at_the_start(tmp_path: Path) -> None:
    """A file in its place."""
    (tmp_path / "state").write_text("")
    fleet = Fleet(
        [_route("r", "a", "b")], _leaves("a", "b"), StoppedClock(), random=Random(1), folder=str(tmp_path / "state")
    )

    with pytest.raises(ConfigurationError, match=r"stores\.state"):
        await fleet.open()


async def test_fleet_folder_that_goes_away_loses_only_what_was_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing never fails."""
    folder = tmp_path / "state"
    fleet = Fleet([_route("r", "a", "b")], _leaves("a", "b"), StoppedClock(), random=Random(1), folder=str(folder))
    await fleet.open()
    folder.rmdir()
    await fleet.aclose()

    assert "cannot be written" in caplog.text


def _pool(clock: FakeClock | StoppedClock, leaves: dict[str, Played], fleet: Fleet, route: RoutePolicy) -> Pool:
    return Pool(
        route.name,
        [
            Member(
                leaves[part.ref],
                part.model,
                part.weight,
                part.priority,
                prices=SetPrice(part.price.exact("route")) if part.price is not None else None,
            )
            for part in route.backends
        ],
        retry=route.retry,
        breaker=route.circuit_breaker,
        clock=clock,
        random=Random(1),
        routing=fleet.routing(route.name),
    )


def _idle(fleet: Fleet) -> bool:
    replicas = fleet.routing("r")
    assert replicas is not None
    return all(
        (load.requests, load.waiting_tokens, load.whole_tokens, load.decoding, load.held_tokens) == (0, 0, 0, 0, 0)
        for load in (replica.in_flight for replica in replicas.replicas)
    )


async def test_pool_by_load_retries_on_another_and_gives_everything_back() -> None:
    """A failed attempt counts nowhere, the next goes to the other member."""
    leaves = {"a": Played("a", ConnectFailed("refused")), "b": Played("b", ConnectFailed("refused"), 200)}
    route = _route("r", "a", "b", retry={"attempts": 3, "backoff": {"initial": "1ms", "max": "1ms", "jitter": 0}})
    clock = FakeClock()
    fleet = Fleet([route], leaves, clock, random=Random(1))
    task = asyncio.ensure_future(_pool(clock, leaves, fleet, route).send(make_call(deadline=1e9)))
    await clock.advance(0.01)
    reply = await task

    assert reply.status == 200
    assert len(leaves["a"].calls) >= 1
    assert _idle(fleet)


async def test_pool_by_load_keeps_a_conversation_where_it_began() -> None:
    """Turn after turn of several conversations: each finds its beginning again once the backends are known."""
    leaves = {name: Played(name, lambda call: _answered(call)) for name in ("a", "b", "c")}
    route, clock = _route("r", *leaves), StoppedClock()
    fleet = Fleet([route], leaves, clock, random=Random(1))
    routing = fleet.routing("r")
    assert routing is not None
    for replica in routing.replicas:
        _teach(replica)
    pool = _pool(clock, leaves, fleet, route)
    asked: dict[int, Counter[str]] = {each: Counter() for each in range(6)}
    for turn in range(1, 6):
        for each in asked:
            messages = [{"role": "user", "content": f"{each} {place} " + "x" * 3000} for place in range(turn)]
            call = make_call(stream=True, deadline=1e9, extra={"messages": messages})
            reply = await pool.send(call)
            assert reply.stream is not None
            while await reply.stream.read():
                pass
            asked[each][str(call.facts.backend)] += 1

    assert all(len(places) == 1 for places in asked.values())
    assert _idle(fleet)
    assert sum(matched for _, matched in fleet.take_tally().tokens.values()) > 20_000
    assert fleet.take_tally().tokens == {"a": (0, 0), "b": (0, 0), "c": (0, 0)}


async def test_pool_by_cost_stays_where_kept_prompts_are_cheaper() -> None:
    """Of members with one price each conversation goes on where it began; without a price for that, by chance."""
    leaves = _leaves("a", "b")
    clock = StoppedClock()

    async def places(**cached: float) -> list[int]:
        price = {"input_per_1m": 1, "output_per_1m": 1, **cached}
        route = _route("r", *({"ref": name, "price": price} for name in leaves), routing=_by("cost"))
        pool = _pool(clock, leaves, Fleet([route], leaves, clock, random=Random(1)), route)
        asked: dict[int, set[str | None]] = {each: set() for each in range(6)}
        for turn in range(1, 6):
            for each, seen in asked.items():
                messages = [{"role": "user", "content": f"{each} {place} " + "x" * 3000} for place in range(turn)]
                call = make_call(deadline=1e9, extra={"messages": messages})
                await pool.send(call)
                seen.add(call.facts.backend)
        return [len(seen) for seen in asked.values()]

    assert await places(cached_input_per_1m=0.1) == [1] * 6
    assert max(await places()) == 2


async def _answered(call: Call) -> Reply:
    call.facts.usage = Usage(100, 5)
    return stream_reply(b"data: 1\n\n", b"data: 2\n\n")


async def test_pool_by_load_any_mix_of_ends_leaves_nothing_in_flight() -> None:
    """Streams read, left, cut and cancelled, whole answers and errors, many at once."""
    random, clock = Random(5), FakeClock()

    async def play(call: Call) -> Reply:
        await clock.sleep(random.random())
        kind = random.randrange(4)
        if kind == 0:
            raise ConnectFailed("refused")
        if kind == 1:
            return Reply(200, [], body=b"{}")
        cut = ConnectFailed("cut") if kind == 2 else None
        return Reply(200, [], stream=Stream(Pieces(b"a", b"b", error=cut)))

    leaves = {name: Played(name, play) for name in ("a", "b")}
    route = _route("r", "a", "b", circuit_breaker={"consecutive_failures": 1000})
    fleet = Fleet([route], leaves, clock, random=Random(1))
    pool = _pool(clock, leaves, fleet, route)

    async def client() -> None:
        try:
            reply = await pool.send(make_call(stream=bool(random.randrange(2)), deadline=1e9))
        except ConnectFailed:
            return
        if reply.stream is None:
            return
        try:
            for _ in range(random.randrange(4)):
                await reply.stream.read()
                await clock.sleep(random.random())
        except ConnectFailed:
            pass
        finally:
            await reply.stream.aclose(StreamEnd.CLIENT_GONE)

    tasks = [asyncio.ensure_future(client()) for _ in range(200)]
    await clock.advance(0.5)
    for task in tasks[::5]:
        task.cancel()
    busy = not _idle(fleet)
    await clock.advance(60.0)
    await asyncio.gather(*tasks, return_exceptions=True)

    assert busy
    assert all(task.done() for task in tasks)
    assert _idle(fleet)


async def test_pool_without_routing_reads_no_call() -> None:
    """One backend: the call's body is not looked at, whatever it is."""
    leaf = Played("a")
    route = _route("r", "a")
    fleet = Fleet([route], {"a": leaf}, StoppedClock(), random=Random(1))
    call = make_call(deadline=1e9, body={"messages": object()})
    await _pool(StoppedClock(), {"a": leaf}, fleet, route).send(call)

    assert fleet.routing("r") is None
    assert leaf.calls == [call]

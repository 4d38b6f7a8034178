"""Faults 10 and 19: a Redis that is down, slow, full or strange, and entries in it that are not what was stored."""

from __future__ import annotations

import time
from importlib.util import find_spec
from statistics import median

from gateway.selftest.bench import Bench, ask_way, quantile
from gateway.selftest.check import Check
from gateway.selftest.client import ReceivedAnswer
from gateway.selftest.lying_redis import LyingRedis, Mode
from gateway.selftest.run import Child
from gateway.selftest.subject import ChatRoute
from gateway.selftest.verdict import CheckOutcome, failed, partial, passed, skipped

_BUG = "report it: this is a bug of the gateway, not of your policy"
_OUT_OF_ORDER: tuple[Mode, ...] = ("silent", "read-only", "full", "wrong type", "loading", "cut", "down")
_STRANGE: tuple[Mode, ...] = ("damaged", "garbage", "honest")
"""The last one with entries of other calls."""


async def out_of_order(bench: Bench) -> CheckOutcome:
    """Whatever is wrong with Redis: calls go on, nearly as fast, and the gateway stays ready."""
    way = _way_to_redis(bench)
    if isinstance(way, CheckOutcome):
        return way
    count = bench.count(8, 100)
    wrong: list[str] = []
    slow: list[float] = []
    slowest_way_s = 0.0
    async with LyingRedis() as redis:
        policy = _with_redis(bench, redis, way)
        async with bench.gateway(policy, is_alone=True) as child:
            usual = [await _timed(child, way, f"honest {number}") for number in range(count)]
            for mode in _OUT_OF_ORDER:
                redis.mode = mode
                if mode == "down":
                    await redis.kill()
                # The first failures open the breaker; what is asked of them is an answer.
                opening = [await _timed(child, way, f"{mode} opening {number}") for number in range(6)]
                after = [await _timed(child, way, f"{mode} {number}") for number in range(count)]
                slow += [took for took, _ in after]
                slowest_way_s = max(slowest_way_s, median(took for took, _ in after))
                if not all(answer.is_good for _, answer in (*opening, *after)):
                    wrong.append(mode)
                if (await child.ask("/ready")).status != 200:
                    wrong.append(f"{mode}: not ready")
    added = max(0.0, quantile(slow, 0.99) - quantile((took for took, _ in usual), 0.99))
    measured = f"{len(_OUT_OF_ORDER) - len(wrong)} of {len(_OUT_OF_ORDER)} ways; p99 {1000 * added:+.0f} ms"
    if wrong:
        return failed(measured, f"calls failed or readiness was lost: {', '.join(wrong)}", _BUG)
    # Of each way the middle call counts: that one call is late may be anybody's fault.
    if slowest_way_s - median(took for took, _ in usual) > 0.1:
        return failed(measured, "a broken Redis makes every call slow", "lower stores.redis.timeout")
    if added > 0.005:
        return partial(measured, "more than 5 ms; is this machine busy?", "stores.redis.timeout bounds it")
    return passed(measured)


async def strange_entries(bench: Bench) -> CheckOutcome:
    """Entries that were damaged, swapped, or are none: misses, and no error for the client."""
    way = _way_to_redis(bench)
    if isinstance(way, CheckOutcome):
        return way
    count = bench.count(5, 50)
    wrong: list[str] = []
    async with LyingRedis() as redis:
        async with bench.gateway(_with_redis(bench, redis, way), is_alone=True) as child:
            for number in range(count):
                await ask_way(child, way, f"entry {number}", temperature=0)
            await _until_stored(bench, redis, count)
            requests_before = bench.num_requests()
            hits = [(await ask_way(child, way, f"entry {number}", temperature=0)) for number in range(count)]
            is_used = bench.num_requests() == requests_before and all(hit.is_good for hit in hits)
            honest = dict(redis.values)
            swapped = dict(zip(honest, reversed(list(honest.values())), strict=True))
            for mode in _STRANGE:
                # What waits to be written is served from memory, and would be written over what is put there now.
                await bench.sleep(0.3)
                redis.mode = mode
                redis.values = dict(swapped if mode == "honest" else honest)
                what = "swapped" if mode == "honest" else mode
                requests_before = bench.num_requests()
                answers = [await ask_way(child, way, f"entry {number}", temperature=0) for number in range(count)]
                most_hits = count % 2 if mode == "honest" else 0
                if not all(answer.is_good for answer in answers):
                    wrong.append(f"{what}: a client got an error")
                if bench.num_requests() - requests_before < count - most_hits:
                    wrong.append(f"{what}: served")
    measured = f"0 of {3 * count} served" if not wrong else f"{len(wrong)} of 3 kinds"
    if wrong:
        return failed(measured, "; ".join(wrong), _BUG)
    if not is_used:
        return partial(measured, "but good entries were not served either: the cache of this route does nothing here")
    return passed(measured)


def _way_to_redis(bench: Bench) -> ChatRoute | CheckOutcome:
    """The route that could keep its answers in Redis; without one, why nothing is tried."""
    way = bench.subject.caching_way()
    if way is None:
        return skipped("no route of this policy has a cache")
    if find_spec("redis") is None:
        return skipped("the Redis client is not installed", "pip install 'slipstream-gateway[redis]'")
    return way


def _with_redis(bench: Bench, redis: LyingRedis, way: ChatRoute) -> dict[str, object]:
    place = bench.new_folder("redis") / "url"
    place.write_text(redis.url, encoding="utf-8")
    policy = bench.policy(way, cache={"scope": "tenant", "exact": {"ttl": "1h"}})
    stores = {name: section for name, section in (policy.get("stores") or {}).items() if name != "semantic"}
    return {**policy, "stores": {**stores, "redis": {"url": f"file:{place}", "timeout": "50ms"}}}


async def _timed(child: Child, way: ChatRoute, text: str) -> tuple[float, ReceivedAnswer]:
    began = time.monotonic()
    answer = await ask_way(child, way, text, temperature=0)
    return time.monotonic() - began, answer


async def _until_stored(bench: Bench, redis: LyingRedis, count: int) -> None:
    for _ in range(100):
        if len(redis.values) >= count:
            return
        await bench.sleep(0.02)


CHECKS = (
    Check("10", "Redis down, slow, full, read-only, strange", out_of_order, is_timed=True),
    Check("19", "cache entries damaged, swapped or garbage", strange_entries),
)

"""CPU microseconds of one decision, eight backends and a prompt of 24 blocks, by way of balancing.

    python -m tests.benchmarks.routing_cost

Every decision is whole: the call is read (its prompt written out and hashed, where that is wanted), a member chosen
among backends that have calls in flight, hold prefixes and are known, and the attempt counted. What is learned of it
later, a first token and an end, is the second column. Then the same for longer prompts. Medians of small batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from random import Random

import msgspec

from backends.protocol import Call, Facts, Operation
from policies.pool.balance import Share
from policies.pool.breaker import CircuitBreaker
from policies.pool.fleet import Fleet
from policies.pool.in_flight import Trip
from policies.schema import CircuitBreakerPolicy, RoutePolicy
from tests.support.pool import Played, StoppedClock

_WAYS = ("least_request", "p2c", "least_tokens", "consistent_hash", "latency", "predicted_cost")
_BATCH = 50


def _call(num_bytes: int, seed: int) -> Call:
    shared = "".join(Random(1).choices("abcdefgh ", k=num_bytes * 2 // 3))
    own = "".join(Random(seed).choices("abcdefgh ", k=num_bytes // 3))
    body = {
        "model": "m",
        "messages": [{"role": "system", "content": shared}, {"role": "user", "content": own}],
        "stream": True,
    }
    return Call(
        operation=Operation.CHAT,
        path="/chat/completions",
        raw=msgspec.json.encode(body),
        body=body,
        model="m",
        deadline=1e9,
        facts=Facts(),
        headers=[(b"content-type", b"application/json"), (b"user-agent", b"benchmark"), (b"accept", b"*/*")],
        stream=True,
        tenant="default",
    )


def _measure(way: str, num_bytes: int, batches: int, num_backends: int) -> tuple[float, float]:
    """Microseconds of CPU to decide, and to learn from it."""
    names = [f"gpu-{place}" for place in range(num_backends)]
    route = RoutePolicy.model_validate(
        {
            "name": "r",
            "match": {"models": ["*"]},
            "backends": [{"ref": name} for name in names],
            "routing": {"policy": way},
        }
    )
    fleet = Fleet([route], {name: Played(name) for name in names}, StoppedClock(), random=Random(1))
    routing = fleet.routing("r")
    assert routing is not None
    breakers = [CircuitBreaker(CircuitBreakerPolicy(), StoppedClock()) for _ in names]
    choose = routing.balancer([Share(place, 1, 0) for place in range(num_backends)], breakers).choose
    calls = [_call(num_bytes, seed) for seed in range(64)]
    now = 0.0
    trips: list[tuple[int, Trip]] = []

    def decide(some: list[Call]) -> None:
        for call in some:
            demand = routing.read(call)
            index = choose((), demand) or 0
            trips.append((index, routing.replicas[index].begin(demand, now)))

    def learn() -> None:
        for index, trip in trips:
            routing.replicas[index].first_token(trip, now + 0.3)
            routing.replicas[index].finish(trip, 200, now + 3.0)
        trips.clear()

    for replica in routing.replicas:
        for _ in range(30):
            demand = routing.read(calls[0])
            trip = replica.begin(demand, now)
            replica.first_token(trip, now + 0.2)
            replica.finish(trip, 200, now + 2.0)
    deciding = []
    learning = []
    for batch in range(batches):
        deciding.append(_cpu(partial(decide, [calls[place % 64] for place in range(batch, batch + _BATCH)])))
        learning.append(_cpu(learn))
    return statistics.median(deciding) / _BATCH * 1e6, statistics.median(learning) / _BATCH * 1e6


def _cpu(action: Callable[[], object]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def main() -> None:
    """Prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--backends", type=int, default=8)
    options = parser.parse_args()
    print(f"{options.backends} backends, CPU us: to decide, to learn")
    for way in _WAYS:
        decide_us, learn_us = _measure(way, 24 * 256, options.batches, options.backends)
        print(f"{way:16} 24 blocks  {decide_us:6.1f}  {learn_us:6.1f}")
    for num_bytes in (64 * 1024, 512 * 1024):
        decide_us, learn_us = _measure("predicted_cost", num_bytes, 10, options.backends)
        print(f"predicted_cost   {num_bytes // 1024:4} KiB   {decide_us:6.1f}  {learn_us:6.1f}")


if __name__ == "__main__":
    main()

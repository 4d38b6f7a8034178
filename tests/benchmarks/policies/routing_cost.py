"""CPU microseconds of one decision, eight backends and a prompt of 24 blocks, by way of balancing.

    python -m tests.benchmarks.policies.routing_cost

Every decision is whole: the call is read (its prompt written out and hashed, where that is wanted), a member chosen
among backends that have calls in flight, hold prefixes and are known, and the attempt counted. What is learned of it
later, a first token and an end, is the second column. Then the same for longer prompts, through the gate of admission
that lets every call in at once, and through one where three hundred wait: there a call joins the line, and is let in
when another's first token has come, which is learned from; tasks included. Medians of small batches.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import msgspec

from backends.operations import Operation
from backends.protocol import Call, Facts
from gateway.simulate.figures import PolicyFigure
from policies.admission.admission import Admission
from policies.admission.gate import Gate
from policies.pool.admission_port import Admitted
from policies.pool.balance.by_load import LoadBalancer
from policies.pool.balance.share import Share
from policies.pool.health.breaker import CircuitBreaker
from policies.pool.load.fleet import Fleet
from policies.pool.load.routing import Routing
from policies.pool.settings import CircuitBreakerPolicy
from policies.schema import RoutePolicy
from tests.support.policy.places import make_place
from tests.support.policy.pool import Played, StoppedClock

_WAYS = ("least_request", "p2c", "least_tokens", "consistent_hash", "latency", "predicted_cost")
_BATCH = 50
_AT_ONCE = 8
"""So few find backends with little to do."""
_WAITING = 300
_MOST_US = 50.0
_BLOCKS_BYTES = 24 * 512


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


class Site:
    """A route over backends that have seen thirty calls; with `admission` also its gate."""

    def __init__(self, way: str, num_bytes: int, num_backends: int, *, admission: bool = False) -> None:
        names = [f"gpu-{place}" for place in range(num_backends)]
        route = RoutePolicy.model_validate(
            {
                "name": "r",
                "match": {"models": ["*"]},
                "backends": [{"ref": name} for name in names],
                "routing": {"policy": way},
                **({"slo": {}, "admission": {}} if admission else {}),
            }
        )
        clock = StoppedClock()
        self.now = clock.now()
        fleet = Fleet([route], {name: Played(name) for name in names}, clock, random=Random(1))
        routing = fleet.routing("r")
        assert routing is not None
        self.routing: Routing = routing
        places = [
            make_place(number, CircuitBreaker(CircuitBreakerPolicy(), clock), replica=replica)
            for number, replica in enumerate(routing.replicas)
        ]
        balancer = routing.balancer([Share(place, 1, 0) for place in places])
        assert isinstance(balancer, LoadBalancer)
        self.balancer = balancer
        self.admission = Admission([route], fleet, clock)
        self.calls = [_call(num_bytes, seed) for seed in range(64)]
        self.begun: deque[Admitted] = deque()
        for replica in routing.replicas:
            for _ in range(30):
                attempt = replica.begin(routing.match(routing.read(self.calls[0])), self.now)
                replica.first_token(attempt, self.now + 0.2)
                replica.finish(attempt, 200, self.now + 2.0)

    @property
    def gate(self) -> Gate:
        """The route's."""
        return self.admission.gates["r"]

    def decide(self, calls: list[Call]) -> None:
        """A member for each."""
        for call in calls:
            match = self.routing.match(self.routing.read(call))
            place = self.balancer.choose((), match)
            assert place is not None, "all are in rotation"
            self.begun.append(Admitted(place, match, place.counted.begin(match, self.now)))

    def enter(self, calls: list[Call]) -> None:
        """As `decide`, through a gate at which nobody waits."""
        for call in calls:
            admitted = self.gate.enter_nowait(call, self.routing.read(call), self.balancer)
            assert admitted is not None, "it should not have waited"
            self.begun.append(admitted)

    async def wait(self, call: Call) -> None:
        """A task of a call that waits at the gate."""
        demand = self.routing.read(call)
        admitted = self.gate.enter_nowait(call, demand, self.balancer)
        self.begun.append(admitted or await self.gate.enter(call, demand, self.balancer))

    def learn(self, number: int | None = None) -> None:
        """The oldest are answered."""
        for _ in range(len(self.begun) if number is None else number):
            place, _, attempt = self.begun.popleft()
            place.counted.first_token(attempt, self.now + 0.3)
            place.counted.finish(attempt, 200, self.now + 3.0)


def _measure(way: str, num_bytes: int, batches: int, num_backends: int, *, gate: bool = False) -> tuple[float, float]:
    """Microseconds of CPU to decide, and to learn from it."""
    site = Site(way, num_bytes, num_backends, admission=gate)
    size = _AT_ONCE if gate else _BATCH
    deciding = []
    learning = []
    for batch in range(batches):
        calls = [site.calls[place % 64] for place in range(batch, batch + size)]
        deciding.append(_cpu(partial(site.enter if gate else site.decide, calls)))
        learning.append(_cpu(site.learn))
    return statistics.median(deciding) / size * 1e6, statistics.median(learning) / size * 1e6


async def _measure_waiting(num_bytes: int, batches: int, num_backends: int) -> float:
    """Microseconds of CPU for a call that waits, from its reading to its end, while three hundred others do."""
    site = Site("predicted_cost", num_bytes, num_backends, admission=True)
    await site.admission.open()
    took = []
    async with asyncio.TaskGroup() as tasks:
        for batch in range(batches):
            while len(site.gate.queue) < _WAITING:
                tasks.create_task(site.wait(site.calls[batch % 64]))
                await asyncio.sleep(0)
            began = time.process_time()
            for place in range(batch, batch + _BATCH):
                tasks.create_task(site.wait(site.calls[place % 64]))
                await asyncio.sleep(0)
                site.learn(1)
                await asyncio.sleep(0)
            took.append(time.process_time() - began)
        while site.gate.queue:
            site.learn(1)
            await asyncio.sleep(0)
    site.learn()
    await site.admission.aclose()
    return statistics.median(took) / _BATCH * 1e6


def _cpu(action: Callable[[], object]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def main() -> None:
    """Prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--backends", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the figure there, for `slipstream bench policies`")
    options = parser.parse_args()
    print(f"{options.backends} backends, CPU us: to decide, to learn")
    for way in _WAYS:
        decide_us, learn_us = _measure(way, _BLOCKS_BYTES, options.batches, options.backends)
        print(f"{way:16} 24 blocks  {decide_us:6.1f}  {learn_us:6.1f}")
    for num_bytes in (64 * 1024, 512 * 1024):
        decide_us, learn_us = _measure("predicted_cost", num_bytes, 10, options.backends)
        print(f"predicted_cost   {num_bytes // 1024:4} KiB   {decide_us:6.1f}  {learn_us:6.1f}")
    admit_us, learn_us = _measure("predicted_cost", _BLOCKS_BYTES, options.batches, options.backends, gate=True)
    waited_us = asyncio.run(_measure_waiting(_BLOCKS_BYTES, options.batches, options.backends))
    print(f"with admission   24 blocks  {admit_us:6.1f}  {learn_us:6.1f}")
    print(f"behind {_WAITING} others 24 blocks  {waited_us:6.1f}, all of it")
    if options.json is not None:
        figure = PolicyFigure(
            f"a decision, route and admit, {options.backends} backends, 24 blocks",
            f"<= {_MOST_US:.0f} us of CPU",
            f"{admit_us:.0f} us",
            note=f"behind {_WAITING} others {waited_us:.0f} us from arrival to end; times depend on the machine",
        )
        options.json.write_bytes(msgspec.json.encode([figure]))


if __name__ == "__main__":
    main()

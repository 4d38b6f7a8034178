"""What hedging does to the slowest first tokens, and what it costs: a real pool over backends that stall now and then.

    python -m tests.benchmarks.policies.hedge_tail

Four backends answer after a time that scatters around 0.22 s (lognormal, sigma 0.5; with `--mixed` around 20 ms and
25 us for each token of prompts of very different lengths), and stall for 5 s more in a share of the calls. In virtual
time, so that nothing but the policy and chance decides. The first 2,000 calls, in which all is learned, do not count.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from backends.operations import Operation
from backends.prompts.text import BYTES_PER_TOKEN
from backends.protocol import Backend, Call, Capabilities, Facts, Reply, Statistics
from backends.stream import Stream
from gateway.simulate.virtual_loop import VirtualClock, VirtualLoop
from policies.pool.attempts.hedge import HedgeStatistics, Hedging
from policies.pool.load.fleet import Fleet
from policies.pool.member import Member
from policies.pool.pool import Pool
from policies.schema import RoutePolicy

_STALL_S = 5.0
_GAP_S = 0.05
LEARNING = 2000
_CONTENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


class Stalling:
    """A backend whose answers begin after a time that scatters, or much later."""

    def __init__(self, name: str, clock: VirtualClock, random: Random, *, stalls: float) -> None:
        self.name = name
        self.capabilities = Capabilities(operations=frozenset({Operation.CHAT}))
        self.asked = 0
        self._clock = clock
        self._random = random
        self._stalls = stalls

    async def open(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""

    def statistics(self) -> Statistics:
        """Calls taken."""
        return Statistics(sent=self.asked)

    async def send(self, call: Call) -> Reply:
        """A stream whose first event is content."""
        self.asked += 1
        seconds = (0.02 + 25e-6 * len(call.raw) / BYTES_PER_TOKEN) * self._random.lognormvariate(0.0, 0.5)
        if self._random.random() < self._stalls:
            seconds += _STALL_S
        await self._clock.sleep(seconds)
        call.facts.first_token_at = self._clock.now()
        return Reply(200, [(b"content-type", b"text/event-stream")], stream=Stream(_Over(), first=_CONTENT))


class _Over:
    """A source with nothing more to say."""

    async def read(self) -> bytes:
        """The end."""
        return b""

    async def aclose(self) -> None:
        """Nothing to release."""


def streamed_chat(raw: bytes, body: dict[str, Any] | None) -> Call:
    """A call without an end to its time."""
    return Call(
        operation=Operation.CHAT,
        path="/chat/completions",
        raw=raw,
        body=body,
        model="m",
        deadline=1e12,
        facts=Facts(),
        stream=True,
    )


def first_tokens(
    loop: VirtualLoop, backend: Backend, made: Callable[[], Call], *, calls: int, gap_s: float, random: Random
) -> list[float]:
    """Sorted seconds to the first token of so many calls, `gap_s` apart in the mean, after those that are
    learned from.
    """
    clock = VirtualClock(loop)
    found: list[float] = []

    async def ask(number: int) -> None:
        began = clock.now()
        reply = await backend.send(made())
        if number >= LEARNING:
            found.append(clock.now() - began)
        assert reply.stream is not None
        while await reply.stream.read():
            pass
        await reply.aclose()

    async def work() -> None:
        async with asyncio.TaskGroup() as clients:
            for number in range(calls + LEARNING):
                clients.create_task(ask(number))
                await clock.sleep(random.expovariate(1 / gap_s))

    loop.run_until_complete(work())
    loop.close()
    return sorted(found)


def measure(
    hedge: dict[str, float] | None, *, stalls: float, calls: int, mixed: bool, seed: int
) -> tuple[list[float], float, HedgeStatistics]:
    """Sorted seconds to the first token, requests sent for each call, and what was hedged."""
    loop = VirtualLoop()  # type: ignore[abstract]  # what the world is needed for is left out
    clock = VirtualClock(loop)
    random = Random(seed)
    leaves = [Stalling(f"gpu-{place}", clock, random, stalls=stalls) for place in range(4)]
    route = RoutePolicy.model_validate(
        {"name": "r", "match": {"models": ["*"]}, "backends": [{"ref": leaf.name} for leaf in leaves], "hedge": hedge}
    )
    fleet = Fleet([route], {leaf.name: leaf for leaf in leaves}, clock, random=random)
    hedging = Hedging(route.hedge, clock) if route.hedge is not None else None
    pool = Pool(
        "r",
        [Member(leaf) for leaf in leaves],
        retry=route.retry,
        breaker=route.circuit_breaker,
        clock=clock,
        random=random,
        routing=fleet.routing("r"),
        hedging=hedging,
    )

    def made() -> Call:
        tokens = int(random.lognormvariate(8.0, 1.2)) if mixed else 8000
        return streamed_chat(b"x" * (BYTES_PER_TOKEN * tokens), None)

    found = first_tokens(loop, pool, made, calls=calls, gap_s=_GAP_S, random=random)
    asked = sum(leaf.asked for leaf in leaves) / (calls + LEARNING)
    return found, asked, hedging.statistics() if hedging is not None else HedgeStatistics()


def main() -> None:
    """Prints one line a policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=40_000)
    parser.add_argument("--stalls", type=float, default=0.01, help="share of calls that stall")
    parser.add_argument("--mixed", action="store_true", help="prompts of very different lengths")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{options.calls} calls, {options.stalls:.1%} stall for {_STALL_S:g} s")
    print("budget  quantile     p50      p99    p99.9  more requests  over budget")
    for budget, quantile in ((None, None), (0.05, 0.95), (0.1, 0.95), (0.02, 0.98), (0.01, 0.99)):
        hedge = {"budget": budget, "quantile": quantile} if budget is not None and quantile is not None else None
        times, asked, counted = measure(
            hedge, stalls=options.stalls, calls=options.calls, mixed=options.mixed, seed=options.seed
        )
        p50, p99, p999 = (times[int(share * len(times))] for share in (0.5, 0.99, 0.999))
        name = f"{budget:6.2f}  {quantile:8.2f}" if hedge else "   off         "
        print(f"{name}  {p50:5.2f} s  {p99:5.2f} s  {p999:5.2f} s  {asked - 1:12.2%}  {counted.over_budget:11}")


if __name__ == "__main__":
    main()

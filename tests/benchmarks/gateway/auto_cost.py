"""CPU that `mode: auto` adds to a call: three ways whose backends answer at once, beside one of these alone.

    python -m tests.benchmarks.gateway.auto_cost [--calls 3000] [--rounds 7]

Streams of a call each, in turns, in one process; processor time, the median over rounds. `--calls` a round.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from statistics import median

from msgspec import structs

from backends.charges.usage import Usage
from backends.clock import Clock, SystemClock
from backends.operations import Operation
from backends.protocol import Backend, Call, Capabilities, Facts, Reply, Slo, Statistics, Timeouts
from backends.stream import Stream
from policies.pool.fallback import FallbackTarget
from policies.prices.price import Price, Tariff, named_price, per_token
from policies.speculation.auto.action import Action
from policies.speculation.auto.settings import AutoPolicy
from policies.speculation.auto.stage import Auto
from tests.support.calls import make_call

_SLO = Slo(1.0, 0.0, 0.1)
_POLICY = AutoPolicy(
    mode="auto",
    allow=("draft", "elsewhere"),
    draft="draft",
    calibration="pair.cascade",
    elsewhere=("cloud",),
    quality=0.9,
    model=None,
    share=0.95,
    late_usd_per_s=0.0,
)
_PRICES = {"target": 10, "draft": 1, "cloud": 100}


class _Empty:
    async def read(self) -> bytes:
        return b""

    async def aclose(self) -> None:
        pass


class _AtOnce:
    """A backend that answers ten tokens at once."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.capabilities = Capabilities(operations=frozenset({Operation.CHAT}))
        self._clock = clock

    async def open(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def statistics(self) -> Statistics:
        return Statistics()

    async def send(self, call: Call) -> Reply:
        call.facts.backend, call.facts.first_token_at, call.facts.usage = self.name, self._clock.now(), Usage(10, 10)
        return Reply(200, [], stream=Stream(_Empty()))


class _Judge:
    async def open(self) -> None:
        pass

    async def loss(self, call: Call) -> float | None:
        return 0.01


def _action(backend: Backend, clock: Clock) -> Action:
    usd = _PRICES[backend.name]
    prices: tuple[Price | None, ...] = (named_price(backend.name, Tariff(per_token(usd, usd))),)
    return Action(backend.name, backend, lambda model: prices, clock)


async def _took_us(backend: Backend, asked: Call, calls: int) -> float:
    """Processor time of a call."""
    each = [structs.replace(asked, facts=Facts()) for _ in range(calls)]
    began = time.process_time()
    for call in each:
        reply = await backend.send(call)
        assert reply.stream is not None
        await reply.stream.read()
        await reply.aclose()
    return (time.process_time() - began) / calls * 1e6


async def _main(calls: int, rounds: int) -> None:
    clock = SystemClock()
    target, draft, cloud = (_AtOnce(name, clock) for name in _PRICES)
    own, small, other = (_action(backend, clock) for backend in (target, draft, cloud))
    elsewhere = [(other, FallbackTarget("cloud", cloud, Timeouts()))]
    stage = Auto(target, _POLICY, own, clock, draft=small, judge=_Judge(), elsewhere=elsewhere)
    asked = structs.replace(make_call(stream=True), slo=_SLO)
    await _took_us(stage, asked, 500)
    alone, auto = [], []
    for _ in range(rounds):
        alone.append(await _took_us(target, asked, calls))
        auto.append(await _took_us(stage, asked, calls))
    print(f"{median(auto) - median(alone):.1f} us a call, of {median(auto):.1f} with backends that take no time")


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--calls", type=int, default=3000, help="of a round (default 3000)")
    options.add_argument("--rounds", type=int, default=7, help="how many (default 7)")
    given = options.parse_args()
    asyncio.run(_main(given.calls, given.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())

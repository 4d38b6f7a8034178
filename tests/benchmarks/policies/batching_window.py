"""Batching windows: embeddings of one input each against an upstream that computes one batch after the other.

    python -m tests.benchmarks.policies.batching_window            # live, over loopback
    python -m tests.benchmarks.policies.batching_window --table    # the same stage in virtual time, at four rates

The upstream takes 6 ms a call and 0.35 ms an input, as its caller sees it. Calls come as a Poisson process to a gateway
with two routes: one with `batching`, one without, which cannot keep up and is asked for three seconds only. Then one
call at a time, in turn through both: what the window adds to an idle backend.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec
import uvloop

from backends.protocol import Backend, Call
from gateway.simulate.figures import PolicyFigure as TableLine
from gateway.simulate.virtual_loop import VirtualClock
from tests.support.faults import Figure, at_most, parser, percentile, policy, report
from tests.support.gateway import start_gateway
from tests.support.http_client import request_bytes
from tests.support.policy.batching import SerialEmbedder, embed, in_virtual_time, make_stage
from tests.support.servers.serial_upstream import EACH_S, FIXED_S, serial_upstream

_RATES = (20, 100, 400, 1200)
_TABLE_CALLS = 20_000
_TABLE_LIMIT_S = 0.1
_OVERLOAD_S = 3.0
_NOTE = "a time: it depends on the machine"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ASKED = {"input": "a short question about nothing much", "encoding_format": "base64"}
_REQUESTS = {
    model: request_bytes("/v1/embeddings", msgspec.json.encode({"model": model, **_ASKED}))
    for model in ("batched", "plain")
}


class _Client(asyncio.Protocol):
    """One connection, one call at a time. As cheap as can be: what it takes of the machine, the gateway cannot have."""

    def __init__(self, idle: list[_Client]) -> None:
        self._idle = idle
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not say of themselves that they are some.
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes) -> asyncio.Future[float]:
        """The milliseconds until the last byte of the answer is here."""
        self._took = asyncio.get_running_loop().create_future()
        self._began = time.monotonic()
        self._transport.write(request)
        return self._took

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not self._missing:
            head, end, _ = data.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            assert head.startswith(b"HTTP/1.1 200"), data
            assert length is not None, data
            self._missing = len(head) + len(end) + int(length[1])
        self._missing -= len(data)
        if not self._missing:
            self._idle.append(self)
            self._took.set_result((now - self._began) * 1e3)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._took.done():
            self._took.set_exception(exc or EOFError("the gateway closed the connection before it answered"))

    def close(self) -> None:
        """Leave."""
        self._transport.abort()


class _Clients:
    """Connections that are used again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[_Client] = []

    async def ask(self, model: str) -> asyncio.Future[float]:
        """Ask that model with a connection that nobody else uses; the milliseconds that it takes."""
        if not self._idle:
            loop = asyncio.get_running_loop()
            _, client = await loop.create_connection(partial(_Client, self._idle), "127.0.0.1", self._port)
            return client.ask(_REQUESTS[model])
        return self._idle.pop().ask(_REQUESTS[model])

    async def aclose(self) -> None:
        """Close what is idle."""
        for client in self._idle:
            client.close()
        # One turn, in which the loop tells the transports that they are closed.
        await asyncio.sleep(0)


async def _load(clients: _Clients, model: str, rate: float, seconds: float, random: Random) -> list[float]:
    """Milliseconds of calls that come as a Poisson process."""
    answers: list[asyncio.Future[float]] = []
    start = time.monotonic()
    at = start
    while (at := at + random.expovariate(rate)) < start + seconds:
        await asyncio.sleep(at - time.monotonic())
        answers.append(await clients.ask(model))
    return list(await asyncio.gather(*answers))


async def _one_by_one(clients: _Clients, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of calls that meet nobody, with the window and without."""
    through: list[float] = []
    beside: list[float] = []
    for _ in range(count):
        through.append(await (await clients.ask("batched")))
        beside.append(await (await clients.ask("plain")))
    return through, beside


async def _early_s() -> float:
    """How much longer than it computes the upstream takes as its caller sees it, on this machine."""
    with serial_upstream() as port:
        clients = _Clients(port)
        took = [await (await clients.ask("plain")) for _ in range(200)]
        await clients.aclose()
    return max(0.0, percentile(took, 0.5) / 1e3 - FIXED_S - EACH_S)


async def live(rate: float, count: int, seed: int) -> list[Figure]:
    """Measure over loopback."""
    random = Random(seed)
    with serial_upstream(await _early_s()) as port:
        routes: dict[str, dict[str, Any]] = {"batched": {"batching": {}}, "plain": {}}
        async with start_gateway(policy(f"http://127.0.0.1:{port}/v1", routes=routes)) as gateway:
            clients = _Clients(gateway.port)
            await _load(clients, "batched", rate, 0.5, random)
            took = await _load(clients, "batched", rate, count / rate, random)
            alone, beside = await _one_by_one(clients, 200)
            collapsed = await _load(clients, "plain", rate, min(_OVERLOAD_S, count / rate), random)
            metrics = await gateway.metrics()
            await clients.aclose()
    inputs = metrics.value("slipstream_batching_inputs_sum") / metrics.value("slipstream_batching_inputs_count")
    for what, values in (("batched", took), ("without", collapsed), ("idle", alone), ("idle, without", beside)):
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        print(f"{what:14} p50 {p50:8.2f}  p99 {p99:8.2f}  max {max(values):8.2f} ms, of {len(values)}")
    print(f"{inputs:.1f} inputs a call upstream")
    added_ms = percentile(alone, 0.5) - percentile(beside, 0.5)
    return [
        at_most(f"p50 at {rate:g} calls/s", 12, percentile(took, 0.5), "ms"),
        at_most(f"p99 at {rate:g} calls/s", 20, percentile(took, 0.99), "ms"),
        Figure("added to an idle backend, p50", "<= 0.5 ms", f"{added_ms:.2f} ms", added_ms <= 0.5),
    ]


def table(seed: int) -> None:
    """Print milliseconds in virtual time, by rate, with the window and without."""
    print(f"{'calls/s':>8}  {'window p50':>10} {'p99':>7} {'in 100 ms':>9}  {'without p50':>11} {'p99':>9}")
    for rate in _RATES:
        through = in_virtual_time(partial(_replay, rate=rate, seed=seed, has_window=True))
        beside = in_virtual_time(partial(_replay, rate=rate, seed=seed, has_window=False))
        in_time = sum(took <= _TABLE_LIMIT_S * 1e3 for took in through) / len(through)
        print(
            f"{rate:8}  {percentile(through, 0.5):10.1f} {percentile(through, 0.99):7.1f} {in_time:9.1%}  "
            f"{percentile(beside, 0.5):11.1f} {percentile(beside, 0.99):9.1f}"
        )


async def _replay(clock: VirtualClock, *, rate: float, seed: int, has_window: bool) -> list[float]:
    random = Random(seed)
    upstream = SerialEmbedder(clock)
    backend: Backend = make_stage(upstream, clock) if has_window else upstream
    took: list[float] = []

    async def ask(call: Call) -> None:
        began = clock.now()
        await backend.send(call)
        took.append((clock.now() - began) * 1e3)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(_TABLE_CALLS, int(60 * rate))):
            await asyncio.sleep(random.expovariate(rate))
            tasks.create_task(ask(embed("a")))
    return took


def main() -> int:
    """Measure and print."""
    options = parser(__doc__, count=4000, what="calls")
    options.add_argument("--rate", type=float, default=400.0, help="calls per second (default 400)")
    options.add_argument("--table", action="store_true", help="the table in virtual time instead")
    options.add_argument("--json", type=Path, help="write the figures there, for `slipstream bench policies`")
    given = options.parse_args()
    if given.table:
        table(given.seed)
        return 0
    # The generator's own pauses are not the subject.
    gc.disable()
    figures = uvloop.run(live(given.rate, given.count, given.seed))
    if given.json is not None:
        lines = [TableLine(f"embeddings, {each.what}", each.asked, each.measured, note=_NOTE) for each in figures]
        given.json.write_bytes(msgspec.json.encode(lines))
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())

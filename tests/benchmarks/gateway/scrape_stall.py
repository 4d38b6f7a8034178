"""How long live calls wait while /metrics is scraped, on a gateway all of whose routes have been used.

    python -m tests.benchmarks.gateway.scrape_stall [--routes 1000] [--workers 1] [--seconds 3] [--command SLIPSTREAM]

Calls go one after the other on a few connections, in turns without scrapes and beside scrapes that follow each other
without a pause, by a process of their own. The figure is the worst wait beside scrapes; what the machine does to calls
that nothing stands beside is printed with it. --command measures another installation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.faults import CHAT, at_most, percentile, report
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import HttpClient, chat_body

_LIMIT_MS = 20.0
_NUM_CALLERS = 4
_PAUSE_S = 0.002


async def _measure(args: argparse.Namespace) -> int:
    async with start_gateway(
        _policy(args.routes), args=("--workers", str(args.workers)), command=args.command
    ) as gateway:
        await _use(gateway, args.routes)
        text = (await gateway.metrics()).text
        print(f"{args.routes} routes used: a scrape has {len(text) / 2**20:.1f} MiB, {text.count(chr(10))} lines")
        alone: list[float] = []
        beside: list[float] = []
        for _ in range(args.rounds):
            alone += await _call(gateway, args.seconds)
            beside += await _beside_scrapes(gateway, args.seconds)
    for name, waits in (("alone", alone), ("beside scrapes", beside)):
        p50, p99, p999 = percentile(waits, 0.5), percentile(waits, 0.99), percentile(waits, 0.999)
        print(f"{name}: {len(waits)} calls, p50 {p50:.1f}, p99 {p99:.1f}, p99.9 {p999:.1f}, worst {max(waits):.1f} ms")
    return report([at_most("a call's wait beside scrapes, worst", _LIMIT_MS, max(beside), "ms")])


async def _use(gateway: Gateway, num_routes: int) -> None:
    """A call and a stream on every route, on as many connections as reach every worker."""
    clients = [await HttpClient.open(gateway.port) for _ in range(8)]

    async def use(number: int, client: HttpClient) -> None:
        for route in range(number, num_routes, len(clients)):
            for stream in (False, True):
                await client.post(CHAT, chat_body(model=f"m{route}", stream=stream))

    await asyncio.gather(*(use(number, client) for number, client in enumerate(clients)))
    for client in clients:
        client.close()


async def _call(gateway: Gateway, seconds: float) -> list[float]:
    """The waits of calls, in milliseconds."""
    end = time.monotonic() + seconds
    waits: list[float] = []

    async def call() -> None:
        client = await HttpClient.open(gateway.port)
        while (began := time.monotonic()) < end:
            await client.post(CHAT, chat_body(model="m0"))
            waits.append((time.monotonic() - began) * 1e3)
            await asyncio.sleep(_PAUSE_S)
        client.close()

    await asyncio.gather(*(call() for _ in range(_NUM_CALLERS)))
    return waits


async def _beside_scrapes(gateway: Gateway, seconds: float) -> list[float]:
    loop = f"while :; do curl -s -o /dev/null {gateway.url}/metrics; done"
    scraper = await asyncio.create_subprocess_exec("sh", "-c", loop, start_new_session=True)
    try:
        return await _call(gateway, seconds)
    finally:
        os.killpg(scraper.pid, signal.SIGKILL)
        await scraper.wait()


def _policy(num_routes: int) -> str:
    routes = [
        f"  - {{name: r{number}, match: {{models: [m{number}]}}, backends: [{{ref: local}}]}}"
        for number in range(num_routes)
    ]
    return "\n".join(["version: 1", "backends: {local: {type: scripted}}", "routes:", *routes, ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and say whether the limit holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--command", type=Path, default=None)
    return asyncio.run(_measure(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())

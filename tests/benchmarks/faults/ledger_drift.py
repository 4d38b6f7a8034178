"""Whether ledger, metrics, dashboard, upstream and clients say the same, while the store is away and a worker dies.

    python -m tests.benchmarks.faults.ledger_drift --count 20000 --outage 60

Calls of every kind (whole, streamed, cached, failed, tried twice) go to a gateway with two workers, an upstream that
counts what it takes, and a ledger in PostgreSQL. A third of the way in PostgreSQL is stopped, for as long as asked; two
thirds in, the busiest worker is killed. Amounts are compared as whole pico-dollars.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.benchmarks.faults.drift_compared import Told, compared
from tests.benchmarks.faults.drift_upstream import PRICE, CountingUpstream
from tests.faults.test_workers import workers_of
from tests.support.faults import CHAT, num_files, parser, report
from tests.support.gateway import Gateway, Metrics, start_gateway
from tests.support.http_client import HttpClient, chat_body
from tests.support.ledger import Postgres, running_postgres

_CLIENTS = 16
_POLICY = """
version: 1
backends:
  up: &up {{type: openai, base_url: "{upstream}", price: {price}}}
  again: *up
ledger: {{url: "{url}", journal: "{journal}"}}
routes:
  - name: broken
    match: {{models: [broken]}}
    backends: [{{ref: up}}]
    retry: {{attempts: 0}}
    circuit_breaker: {{max_ejection_percent: 0}}
  - name: shaky
    match: {{models: [shaky]}}
    backends: [{{ref: up}}, {{ref: again}}]
    retry: {{attempts: 3}}
    circuit_breaker: {{max_ejection_percent: 0}}
  - {{name: cached, match: {{models: [cached]}}, backends: [{{ref: up}}], cache: {{}}}}
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}
"""
_MODELS = ("m", "cached", "m", "shaky", "cached", "m", "cached", "m", "broken", "cached")
_REPEATED = 300
"""As many different questions go to the cache."""
_FRESH_WITHIN_S = 7.0
"""Workers bring all their counters up to date every five seconds."""


@dataclass(slots=True)
class Killed:
    """When a worker was, in microseconds since 1970."""

    at_us: int = 0


class Traffic:
    """What clients sent, and what they were told."""

    def __init__(self, gateway: Gateway, count: int) -> None:
        self._gateway = gateway
        self._count = count
        self.num_sent = 0
        self.told: dict[str, Told] = {}
        self.broken: set[str] = set()
        """The questions of calls that were not answered whole."""

    async def run(self) -> None:
        """Send all of it."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_CLIENTS):
                group.create_task(self._client())

    async def _client(self) -> None:
        client: HttpClient | None = None
        while self.num_sent < self._count:
            number = self.num_sent = self.num_sent + 1
            model = _MODELS[number % len(_MODELS)]
            question = f"{model} {number % _REPEATED if model == 'cached' else number}"
            is_stream = number % 3 == 0
            body = chat_body(question, model=model, stream=is_stream)
            try:
                if client is None:
                    client = await HttpClient.open(self._gateway.port)
                answer = await client.post(CHAT, body, timeout_s=30)
            except (OSError, TimeoutError, AssertionError):
                answer = None
            if answer is None or not answer.is_whole:
                self.broken.add(question)
                if client is not None:
                    client.close()
                client = None
                continue
            tokens = None
            if answer.status == 200 and not is_stream:
                tokens = answer.json()["usage"]["completion_tokens"]
            self.told[answer.header(b"x-request-id").decode()] = Told(question, answer.status, tokens)
        if client is not None:
            client.close()


async def _trouble(
    traffic: Traffic, gateway: Gateway, server: Postgres, count: int, outage_s: float, killed: Killed
) -> None:
    await _until(lambda: traffic.num_sent >= count // 3)
    await asyncio.to_thread(server.stop)
    began = time.monotonic()
    await _until(lambda: traffic.num_sent >= 2 * count // 3)
    # The one with most clients has most connections, and calls under way.
    os.kill(max(workers_of(gateway), key=num_files), signal.SIGKILL)
    killed.at_us = time.time_ns() // 1000
    await asyncio.sleep(max(0.0, outage_s - (time.monotonic() - began)))
    await asyncio.to_thread(server.start)


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


async def _settled(gateway: Gateway, timeout_s: float = 90.0) -> Metrics:
    """What /metrics says once the store has all and every worker has counted what it did."""
    give_up_at = time.monotonic() + timeout_s
    said = (-1.0, -1.0)
    since = time.monotonic()
    while True:
        metrics = await gateway.metrics()
        says = (metrics.value("slipstream_ledger_rows_total"), metrics.value("slipstream_ledger_waiting"))
        now = time.monotonic()
        if says != said:
            said, since = says, now
        if (now - since > _FRESH_WITHIN_S and not says[1]) or now > give_up_at:
            return metrics
        await asyncio.sleep(0.5)


async def _dashboard(gateway: Gateway) -> list[Any]:
    """Its first page, of spans that are added up from hours and from days."""
    async with httpx.AsyncClient(base_url=f"{gateway.url}/dashboard/api/", timeout=30) as client:
        answers = [await client.get("overview", params={"range": span, "by": "model"}) for span in ("24h", "7d", "30d")]
    return [answer.raise_for_status().json() for answer in answers]


async def measure(count: int, outage_s: float) -> int:
    """Print the figures; the exit code."""
    killed = Killed()
    with running_postgres() as server, tempfile.TemporaryDirectory() as journal:
        async with CountingUpstream() as upstream:
            policy = _POLICY.format(url=server.url, journal=journal, upstream=upstream.base_url, price=PRICE)
            async with start_gateway(policy, args=("--workers", "2")) as gateway:
                traffic = Traffic(gateway, count)
                async with asyncio.TaskGroup() as group:
                    group.create_task(_trouble(traffic, gateway, server, count, outage_s, killed))
                    await traffic.run()
                metrics = await _settled(gateway)
                shown = await _dashboard(gateway)
                figures = await asyncio.to_thread(
                    compared, server.url, traffic.told, traffic.broken, upstream.used, metrics, shown, killed.at_us
                )
    return report(figures)


def main() -> int:
    """Measure and print."""
    options = parser(__doc__, count=20_000, what="calls")
    options.add_argument("--outage", type=float, default=60, help="seconds without the store (default 60)")
    given = options.parse_args()
    return asyncio.run(measure(given.count, given.outage))


if __name__ == "__main__":
    sys.exit(main())

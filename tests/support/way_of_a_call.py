"""A call through `slipstream serve` with exact cache, admission and a least-cost pool: every function on its way."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from tests.support.docs import ROOT
from tests.support.gateway import Gateway, start_gateway
from tests.support.servers.openai_server import OpenAIServer

POLICY = """\
version: 1
backends:
  near: {{type: openai, base_url: "{url}"}}
  far: {{type: openai, base_url: "{url}"}}
routes:
  - name: chat
    match: {{models: ["*"]}}
    backends: [{{ref: near}}, {{ref: far}}]
    slo: {{}}
    admission: {{}}
    routing: {{policy: predicted_cost}}
    cache: {{scope: tenant, exact: {{ttl: 1h}}}}
"""


async def way_of_a_call(upstream: OpenAIServer, folder: Path, python: str = sys.executable) -> list[str]:
    """The calls of one request as `path:function`, in their order. `python` is the interpreter of a checkout."""
    traced = folder / "calls.json"
    launcher = folder / "slipstream"
    program = ROOT / "tests" / "support" / "call_trace.py"
    launcher.write_text(f'#!/bin/sh\nexec {python} -P {program} {traced} "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    traced.unlink(missing_ok=True)

    policy = POLICY.format(url=upstream.base_url)
    async with start_gateway(policy, environ={"SLIPSTREAM_RELOAD_INTERVAL": "1h"}, command=launcher) as gateway:
        await ask(gateway, "the first one makes what is made once")
        gateway.process.send_signal(signal.SIGUSR1)
        await written(traced, "")
        await ask(gateway, "the next one goes the way of all others")
        gateway.process.send_signal(signal.SIGUSR1)
        await written(traced, "[")
    calls: list[str] = json.loads(traced.read_text())
    return calls


async def ask(gateway: Gateway, prompt: str) -> None:
    """One call, answered and in the log."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"{prompt} {'word ' * 200}"}]})
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\nconnection: close\r\n"
    )
    seen = len(gateway.stdout.splitlines())
    answer = await gateway.raw(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    assert answer.startswith(b"HTTP/1.1 200 ")
    async with asyncio.timeout(10):
        while len(gateway.stdout.splitlines()) == seen:
            await asyncio.sleep(0.01)


async def written(file: Path, begin: str) -> None:
    """Once that file is there and begins so."""
    async with asyncio.timeout(10):
        while not begins(file, begin):
            await asyncio.sleep(0.01)


def begins(file: Path, begin: str) -> bool:
    """Whether it is there and begins so."""
    return file.exists() and file.read_text(encoding="utf-8").startswith(begin)

"""The picture in docs/architecture.md: the folders that it draws are those that a call really goes through."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from pathlib import Path

from tests.support.docs import ROOT, page
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
NOT_DRAWN = {"policies", "backends", "gateway/process"}
"""Values that all of a layer use, and the tick of the server's clock."""


async def test_way_of_a_call_is_the_one_that_is_drawn(openai_server: OpenAIServer, tmp_path: Path) -> None:
    """With an exact cache, admission and a least-cost pool: every folder that it enters is a box, and no other is."""
    entered = tmp_path / "entered.json"
    launcher = tmp_path / "slipstream"
    program = ROOT / "tests" / "support" / "folders_entered.py"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -P {program} {entered} "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)

    policy = POLICY.format(url=openai_server.base_url)
    async with start_gateway(policy, environ={"SLIPSTREAM_RELOAD_INTERVAL": "1h"}, command=launcher) as gateway:
        await ask(gateway, "the first one makes what is made once")
        gateway.process.send_signal(signal.SIGUSR1)
        await written(entered, "")
        await ask(gateway, "the next one goes the way of all others")
        gateway.process.send_signal(signal.SIGUSR1)
        await written(entered, "[")

    drawn = re.findall(r'class="room"[^>]*>([\w/]+)<', page("docs/way-of-a-call.svg"))
    assert set(drawn) == set(json.loads(entered.read_text())) - NOT_DRAWN
    assert len(drawn) == len(set(drawn))


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

"""Errors that nobody has foreseen, told to a function of the operator's own by a real gateway."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import httpx

from tests.support.gateway import start_gateway

POLICY = """
version: 1
backends:
  broken: {type: openai, base_url: "http://127.0.0.1:9/v1", transport: "own_errors:Transport"}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: broken}]}]
"""
CODE = """
import json, os, threading
import httpx

class Transport(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request):
        raise ZeroDivisionError("of the operator's own")

def report(record):
    known = record.exc_info[0].__name__ if record.exc_info else None
    with open(os.environ["REPORTS"], "a") as file:
        said = {"message": record.getMessage(), "type": known, "dropped": record.dropped}
        file.write(json.dumps(said) + chr(10))
    if os.environ.get("FAILS"):
        raise KeyError("sentry")
    if os.environ.get("HANGS"):
        threading.Event().wait()
"""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "secret words"}]}


async def _asked(folder: Path, times: int, **more: str) -> tuple[list[dict[str, object]], str]:
    """What was reported of so many calls that fail, and what the gateway logged."""
    (folder / "own_errors.py").write_text(CODE, encoding="utf-8")
    reports = folder / "reports"
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {
        "PYTHONPATH": paths,
        "SLIPSTREAM_ERROR_HOOK": "own_errors:report",
        "REPORTS": str(reports),
        **more,
    }
    async with start_gateway(POLICY, environ=environ) as gateway:
        async with httpx.AsyncClient(verify=False, base_url=gateway.url, timeout=20) as client:
            for number in range(times):
                headers = {"x-request-id": f"call-{number}"}
                answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
                assert answer.status_code == 500
        await asyncio.to_thread(gateway.stop)
        return [json.loads(line) for line in reports.read_text().splitlines()], gateway.stderr


async def test_hook_is_told_with_where_it_came_from(tmp_path: Path) -> None:
    """Each error with its exception, none with what the client said, the last ones also where the gateway ends."""
    reported, _ = await _asked(tmp_path, 3)

    assert [said["message"] for said in reported] == [
        f"request call-{number} failed inside the gateway" for number in range(3)
    ]
    assert {said["type"] for said in reported} == {"ZeroDivisionError"}


async def test_hook_that_fails_is_warned_of_once(tmp_path: Path) -> None:
    """And is told of the next one all the same."""
    reported, log = await _asked(tmp_path, 3, FAILS="1")

    assert len(reported) == 3
    assert log.count("the error hook fails: KeyError: 'sentry'") == 1


async def test_hook_that_hangs_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Not the calls, nor the end of the gateway."""
    reported, _ = await _asked(tmp_path, 150, HANGS="1")

    assert len(reported) == 1

"""The start, what it costs, and the end."""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.errors import read_broken
from tests.support.gateway import Gateway, gateway_process, start_gateway
from tests.support.servers.openai_server import Behaviour, OpenAIServer

PATH = "/v1/chat/completions"
LIBRARIES = "click, prometheus_client, pydantic_settings, starlette.applications, uvicorn.config, yaml"
MAX_START = 2.0
"""What a start may cost, in what it costs to import the libraries that it needs. The same on slow machines and fast."""
MAX_RSS_MIB = 60
ROOT = Path(__file__).parents[2]
SCRIPTED = ROOT / "policies" / "presets" / "scripted.yaml"
HEAVY = (
    *("torch", "numpy", "redis", "opentelemetry", "jsonschema", "faiss", "sentence_transformers", "transformers"),
    *("httpx", "rich", "sqlite3", "gateway.selftest", "gateway.simulate", "gateway.batches.service"),
)


def policy(url: str) -> str:
    """A policy with one upstream."""
    return f"""
version: 1
backends: {{up: {{type: openai, base_url: "{url}"}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: up}}]}}]
"""


def chat(**fields: Any) -> dict[str, Any]:
    """A call."""
    return {"model": "m", "messages": [{"role": "user", "content": "a b c d"}], **fields}


@pytest.mark.parametrize("backend", ["scripted", "openai", "anthropic"])
def test_serving_imports_nothing_heavy(backend: str, tmp_path: Path) -> None:
    """A gateway without models, Redis, batches or tracing loads nothing that only those need."""
    file = SCRIPTED
    if backend != "scripted":
        file = tmp_path / "policy.yaml"
        file.write_text(policy("https://127.0.0.1:9").replace("openai", backend), encoding="utf-8")
    program = f"""
import asyncio, sys
from gateway.process.factory import create_application
from gateway import app
from gateway.process import server
from gateway.cli import main, serve
application = create_application()
async def live():
    messages = [{{"type": "lifespan.startup"}}, {{"type": "lifespan.shutdown"}}]
    async def receive():
        return messages.pop(0)
    async def send(message):
        pass
    await application({{"type": "lifespan"}}, receive, send)
asyncio.run(live())
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "SLIPSTREAM_POLICY": str(file)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.alone
@pytest.mark.timed
async def test_start_is_quick_and_small() -> None:
    """It costs no more CPU than its libraries do, one worker stays under its limit, after requests too."""
    # As an installation leaves it: without its bytecode, every start would compile what it imports.
    for package in ("backends", "gateway", "policies"):
        assert compileall.compile_dir(ROOT / package, quiet=1)
    starts_s, libraries_s = [], []
    for _ in range(3):
        libraries_s.append(_cpu_of_imports_s())
        async with start_gateway(SCRIPTED.read_text(encoding="utf-8"), afresh=True) as gateway:
            starts_s.append(_cpu_s(gateway.process.pid))
    async with start_gateway(SCRIPTED.read_text(encoding="utf-8"), afresh=True) as gateway:
        at_start_mib = gateway.rss_mib()
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            for number in range(300):
                answer = await client.post(PATH, json=chat(stream=number % 2 == 0))
                assert answer.status_code == 200
        after_mib = gateway.rss_mib()

        assert "curl" in gateway.stderr
    # A busy machine stretches the time on the wall more than the work, and the least of several the least.
    assert min(starts_s) < MAX_START * min(libraries_s), (starts_s, libraries_s)
    assert at_start_mib < MAX_RSS_MIB
    assert after_mib < MAX_RSS_MIB


async def test_policy_names_itself_where_it_is_wrong() -> None:
    """Exit code 1, the file, the place and a hint; nothing of Python's."""
    with gateway_process("version: 1\nbackend: {}\n") as gateway:
        code = await gateway.wait_exit()

        assert code == 1
        assert "policy.yaml" in gateway.stderr
        assert "backends" in gateway.stderr
        assert "Traceback" not in gateway.stderr


async def test_port_that_is_taken_is_named(openai_server: OpenAIServer) -> None:
    """Exit code 1, with what to do."""
    with gateway_process(policy("http://x"), args=["--port", str(openai_server.port)]) as gateway:
        code = await gateway.wait_exit()

        assert code == 1
        assert f"cannot listen on 127.0.0.1:{openai_server.port}" in gateway.stderr
        assert "--port" in gateway.stderr


async def test_setting_that_is_wrong_is_named() -> None:
    """The variable, not a stack."""
    with gateway_process(policy("http://x"), environ={"SLIPSTREAM_DRAIN_LIMIT": "soon"}) as gateway:
        code = await gateway.wait_exit()

        assert code in (1, 2)
        assert "SLIPSTREAM_DRAIN_LIMIT" in gateway.stderr
        assert "Traceback" not in gateway.stderr


async def test_end_flips_readiness_and_drains_streams(openai_server: OpenAIServer) -> None:
    """SIGTERM: /ready says no while new calls are still served, then the port closes, the stream ends whole, exit 0."""
    openai_server.next(Behaviour(event_delay_s=0.1))
    async with (
        start_gateway(policy(openai_server.base_url), environ={"SLIPSTREAM_DRAIN_DELAY": "200ms"}) as gateway,
        httpx.AsyncClient(base_url=gateway.url, verify=False) as client,
    ):
        ready = await client.get("/ready")
        async with client.stream("POST", PATH, json=chat(stream=True)) as answer:
            pieces = answer.aiter_raw()
            received = await anext(pieces)
            gateway.process.send_signal(signal.SIGTERM)
            draining = await _ask_until(client, "/ready", 503)
            alive = await client.get("/health")
            served = await client.post(PATH, json=chat())
            async for piece in pieces:
                received += piece
        code = await gateway.wait_exit()
        line = [line for line in gateway.log if line.get("stream_end")]

        assert ready.status_code == 200
        assert draining.json() == {"status": "draining"}
        assert (alive.status_code, served.status_code) == (200, 200)
        assert received.endswith(b"data: [DONE]\n\n")
        assert [entry["stream_end"] for entry in line] == ["clean"], (gateway.stdout, gateway.stderr)
        assert code == 0
        assert "Traceback" not in gateway.stderr


@pytest.mark.timed
async def test_stream_that_outlasts_the_drain_limit_is_cut_visibly(openai_server: OpenAIServer) -> None:
    """After the limit the client sees a break, not an end, and the gateway goes."""
    openai_server.next(Behaviour(stall_after_events=2))
    async with (
        start_gateway(policy(openai_server.base_url), environ={"SLIPSTREAM_DRAIN_LIMIT": "1s"}) as gateway,
        httpx.AsyncClient(base_url=gateway.url, verify=False) as client,
    ):
        async with client.stream("POST", PATH, json=chat(stream=True)) as answer:
            gateway.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            received = await read_broken(answer)
        took_s = time.monotonic() - began
        code = await gateway.wait_exit()

        assert b"[DONE]" not in received
        assert b'"code":"draining"' in received
        assert 0.8 < took_s < 5
        assert code == 0
        assert "Traceback" not in gateway.stderr


async def test_call_that_outlasts_the_drain_limit_is_answered(openai_server: OpenAIServer) -> None:
    """One that has no byte yet gets a 503 with its reason rather than a closed door."""
    openai_server.next(Behaviour(stall_before_head=True))
    async with (
        start_gateway(policy(openai_server.base_url), environ={"SLIPSTREAM_DRAIN_LIMIT": "1s"}) as gateway,
        httpx.AsyncClient(base_url=gateway.url, verify=False) as client,
    ):
        call = asyncio.create_task(client.post(PATH, json=chat()))
        await openai_server.wait_request(0, timeout_s=5)
        gateway.process.send_signal(signal.SIGTERM)
        answer = await call
        code = await gateway.wait_exit()

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "draining"
    assert code == 0


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.timed
async def test_idle_gateway_ends_at_once(sig: signal.Signals) -> None:
    """Idle connections do not hold it up; exit code 0 and the last line is written."""
    async with (
        start_gateway(SCRIPTED.read_text(encoding="utf-8")) as gateway,
        httpx.AsyncClient(base_url=gateway.url, verify=False) as client,
    ):
        await client.post(PATH, json=chat(), headers={"x-request-id": "the-last"})
        gateway.process.send_signal(sig)
        began = time.monotonic()
        code = await gateway.wait_exit()

        assert code == 0
        assert time.monotonic() - began < 2
        assert gateway.log[-1]["request_id"] == "the-last"


async def test_worker_that_dies_later_is_replaced_and_its_gauges_with_it(openai_server: OpenAIServer) -> None:
    """Killed in the middle of a stream: another takes its place, and what it was doing is not in flight for ever."""
    openai_server.next(Behaviour(stall_after_events=1))
    async with start_gateway(policy(openai_server.base_url), args=["--workers", "2"]) as gateway:
        first = _workers(gateway)
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            async with client.stream("POST", PATH, json=chat(stream=True)) as answer:
                pieces = answer.aiter_raw()
                await anext(pieces)
                in_flight = await _settled_gauge(gateway, "slipstream_requests_in_flight", 1)
                for pid in first:
                    os.kill(pid, signal.SIGKILL)
        await gateway.wait_stderr(r"(?s)worker \d+ ended.*worker \d+ ended")
        async with asyncio.timeout(30):
            while len(set(_workers(gateway)) - set(first)) < 2:
                await asyncio.sleep(0.02)
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            again = await client.post(PATH, json=chat())
        afterwards = await _settled_gauge(gateway, "slipstream_requests_in_flight", 0)
        code = await gateway.terminate()

    assert len(first) == 2
    assert (in_flight, afterwards) == (1, 0)
    assert again.status_code == 200
    assert code == 0


async def test_start_with_an_upstream_named_proxies_it(openai_server: OpenAIServer) -> None:
    """`--upstream URL` needs no file."""
    async with start_gateway(
        None, args=["--upstream", openai_server.base_url], environ={"UPSTREAM_KEY": "sk-up-0123456789"}
    ) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            answer = await client.post(PATH, json=chat())

    assert answer.status_code == 200
    assert openai_server.requests[0].header("authorization") == "Bearer sk-up-0123456789"


async def test_log_whose_reader_is_gone_stops_no_request() -> None:
    """A closed pipe on standard output costs lines only."""
    script = Path(sys.executable).with_name("slipstream")
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        script, "serve", str(SCRIPTED), "--port", "0", stdout=writer, stderr=asyncio.subprocess.PIPE
    )
    os.close(writer)
    os.close(reader)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(15):
            greeting = (await process.stderr.readline()).decode()
        url = greeting.partition("listens on ")[2].partition("/v1")[0]
        async with httpx.AsyncClient(base_url=url, verify=False) as client:
            for _ in range(3):
                assert (await client.post(PATH, json=chat())).status_code == 200
                await asyncio.sleep(0.05)
    finally:
        process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await process.communicate()

    assert process.returncode == 0


async def _ask_until(client: httpx.AsyncClient, path: str, status: int) -> httpx.Response:
    async with asyncio.timeout(5):
        while (answer := await client.get(path)).status_code != status:
            await asyncio.sleep(0.01)
    return answer


async def _settled_gauge(gateway: Gateway, name: str, expected: float) -> float:
    """A gauge once it has come to that value, or what it is after a while: workers bring theirs up to date by turns."""
    value = -1.0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(8):
            while (value := (await gateway.metrics()).value(name)) != expected:
                await asyncio.sleep(0.05)
    return value


def _cpu_of_imports_s() -> float:
    before = os.times()
    subprocess.run([sys.executable, "-c", f"import {LIBRARIES}"], check=True, timeout=30)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _workers(gateway: Gateway) -> list[int]:
    """Its worker processes: children that are not multiprocessing's resource tracker."""
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text(encoding="ascii")
    return [int(pid) for pid in children.split() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

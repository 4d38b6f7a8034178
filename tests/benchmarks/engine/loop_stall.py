"""How late the gateway's event loop is while a model runs flat out in the same process.

    python -m tests.benchmarks.engine.loop_stall --seconds 10 --clients 16 [--model DIR] [--threads 1]

The gateway serves in this process; its clients stream from another one. A task on the loop sleeps 1 ms again and again
and notes by how much each sleep took longer: once without load, once with it. Without --model it is the package's
test model, or else one of the same kind with random weights.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import uvloop

from gateway.process.aside import TURN_S
from gateway.process.factory import create_application
from gateway.process.server import GatewayServer, _config
from gateway.settings import Settings
from tests.support.faults import CHAT, at_most, percentile, report
from tests.support.http_client import HttpClient, chat_body, request_bytes

_TICK_S = 0.001
_LIMIT_MS = 10.0
_IDLE_S = 2.0
_POLICY = """
version: 1
backends: {{model: {{type: engine, model: "{model}", device: {device}, threads: {threads}}}}}
routes: [{{name: all, match: {{models: ["*"]}}, backends: [{{ref: model}}]}}]
"""


async def _tick(seconds: float) -> list[float]:
    """By how many milliseconds each sleep of 1 ms was late."""
    lags = []
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        await asyncio.sleep(_TICK_S)
        lags.append((time.monotonic() - began - _TICK_S) * 1e3)
    return lags


async def _load(port: int, clients: int, seconds: float) -> None:
    """Streams without a pause, `clients` at a time; prints the events that came."""
    body = chat_body("Say something long.", stream=True, max_tokens=256, ignore_eos=True)
    end = time.monotonic() + seconds
    num_events = 0

    def note(data: bytes) -> None:
        nonlocal num_events
        num_events += data.count(b"data: ")

    async def stream() -> None:
        client = await HttpClient.open(port)
        client.on_bytes = note
        try:
            while time.monotonic() < end:
                client.send(request_bytes(CHAT, body))
                answer = await client.answer(timeout_s=120)
                assert answer.is_whole, f"{answer.status} {bytes(answer.body)[:200]!r}"
        finally:
            client.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(stream())
    print(num_events)


async def _measure(settings: Settings, listener: socket.socket, given: argparse.Namespace) -> tuple[list[float], ...]:
    """Lags without load and with it, and the events that were streamed meanwhile."""
    config = _config(settings, create_application)
    config.load()
    server = GatewayServer(config, 0.0, lambda: None)
    port = listener.getsockname()[1]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        assert not serving.done(), "the gateway does not start"
        await asyncio.sleep(0.05)
    idle = await _tick(_IDLE_S)
    command = [sys.executable, "-m", "tests.benchmarks.engine.loop_stall", "--load", str(port)]
    command += ["--clients", str(given.clients), "--seconds", str(given.seconds)]
    clients = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    # The clients' own start is not the subject.
    await asyncio.sleep(min(2.0, given.seconds / 2))
    busy = await _tick(max(1.0, given.seconds - 2.0))
    output, _ = await clients.communicate()
    server.should_exit = True
    await serving
    return idle, busy, [float(output.decode().strip() or 0)]


@contextlib.contextmanager
def _model(given: str | None) -> Iterator[str]:
    """The model's folder or name."""
    embedded = Path(str(resources.files("backends.engine.demo_models"))) / "target" / "config.json"
    if given is not None or embedded.is_file():
        yield given or "slipstream-target"
        return
    from tests.support.engine.tiny_pair import make_pair

    with tempfile.TemporaryDirectory() as folder:
        yield str(make_pair(Path(folder)).target)


def main() -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--seconds", type=float, default=10.0, help="how long to load it (default 10)")
    options.add_argument("--clients", type=int, default=16, help="streams at a time (default 16)")
    options.add_argument("--model", help="a folder in Hugging Face's layout")
    options.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    options.add_argument("--threads", type=int, default=1, help="processor threads of the model (default 1)")
    options.add_argument("--load", type=int, metavar="PORT", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.load is not None:
        asyncio.run(_load(given.load, given.clients, given.seconds))
        return 0
    sys.setswitchinterval(TURN_S)
    with _model(given.model) as model, tempfile.TemporaryDirectory() as folder, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        path = Path(folder, "policy.yaml")
        path.write_text(_POLICY.format(model=model, device=given.device, threads=given.threads), encoding="utf-8")
        os.environ.update(SLIPSTREAM_POLICY=str(path), SLIPSTREAM_ACCESS_LOG="off")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            idle, busy, [num_events] = runner.run(_measure(Settings(), listener, given))
    for what, lags in (("idle", idle), ("flat out", busy)):
        middle, late = percentile(lags, 0.5), percentile(lags, 0.99)
        print(f"{what:8} p50 {middle:6.2f}  p99 {late:6.2f}  max {max(lags):6.2f} ms, of {len(lags)} ticks")
    print(f"{num_events:.0f} events streamed, {num_events / given.seconds:.0f}/s")
    return report([at_most("lag of the event loop, p99", _LIMIT_MS, percentile(busy, 0.99), "ms")])


if __name__ == "__main__":
    sys.exit(main())

"""The gateway as users run it: `slipstream serve` in a process of its own, on a free port.

async with start_gateway(policy, environ={"UPSTREAM_KEY": "sk-up"}) as gateway:
    ...  # requests to gateway.url + "/v1/chat/completions"
    line = await gateway.wait_log(lambda line: line["status"] == 200)
    await gateway.reload(other_policy)
    assert await gateway.terminate() == 0
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from tests.support.servers.forks import Fork, Forks

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 30.0
_POLL_S = 0.01
_SETTINGS = {
    "SLIPSTREAM_RELOAD_INTERVAL": "50ms",
    # How requests that are written byte by byte call it.
    "SLIPSTREAM_ALLOWED_HOSTS": "gateway",
}
_GREETING = re.compile(r"Slipstream listens on http://\S*?:(\d+)/v1, policy revision (\w+)")
_RELOADED = re.compile(r"policy revision (\w+) is in force|the changed policy file is not taken over")
_SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Line = dict[str, Any]
Labels = Mapping[str, str]


class Gateway:
    """A running gateway. It belongs to no event loop, so one may serve the tests of a whole module."""

    def __init__(self, process: subprocess.Popen[bytes] | Fork, folder: Path) -> None:
        self.process = process
        self.port = 0
        self._folder = folder

    @property
    def url(self) -> str:
        """Where it listens, without /v1."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def policy(self) -> Path:
        """The policy file it watches."""
        return self._folder / "policy.yaml"

    @property
    def stderr(self) -> str:
        """What it has said on standard error."""
        return (self._folder / "stderr").read_text(encoding="utf-8", errors="replace")

    @property
    def stdout(self) -> str:
        """What it has said on standard output, which is the access log."""
        return (self._folder / "stdout").read_text(encoding="utf-8")

    @property
    def log(self) -> list[Line]:
        """The lines of the access log so far; it is written ten times a second."""
        return [json.loads(line) for line in self.stdout.splitlines(keepends=True) if line.endswith("\n")]

    async def wait_log(self, wanted: Callable[[Line], bool] = bool, count: int = 1, timeout_s: float = 15.0) -> Line:
        """The last of the first `count` lines that are `wanted`, once they are there. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                found = [line for line in self.log if wanted(line)]
                if len(found) >= count:
                    return found[count - 1]
                await asyncio.sleep(_POLL_S)

    async def wait_stderr(self, pattern: str, since: int = 0, timeout_s: float = 20.0) -> re.Match[str]:
        """The first match after `since` characters, once it is there. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while (match := re.compile(pattern).search(self.stderr, since)) is None:
                await asyncio.sleep(_POLL_S)
        return match

    async def reload(self, text: str) -> bool:
        """Replace the policy file, send SIGHUP, wait for the outcome: whether it was taken over."""
        since = len(self.stderr)
        self.write_policy(text)
        self.process.send_signal(signal.SIGHUP)
        return (await self.wait_stderr(_RELOADED.pattern, since))[1] is not None

    def write_policy(self, text: str) -> None:
        """Replace the policy file in one step, and leave it to the gateway to notice."""
        fresh = self._folder / "policy.new"
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self.policy)

    async def terminate(self) -> int:
        """Ask it to stop, and wait: the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.wait_exit()

    async def wait_exit(self, timeout_s: float = _STOP_LIMIT_S) -> int:
        """The exit code, once there is one. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while (code := self.process.poll()) is None:
                await asyncio.sleep(_POLL_S)
        return code

    async def metrics(self) -> Metrics:
        """What /metrics says now."""
        answer = await self.raw(b"GET /metrics HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n")
        return Metrics(answer.partition(b"\r\n\r\n")[2].decode("utf-8"))

    async def raw(self, request: bytes, timeout_s: float = 10.0) -> bytes:
        """Send these bytes on a connection of their own; everything that comes back until it is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(timeout_s):
                writer.write(request)
                return await reader.read()
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def rss_mib(self) -> float:
        """Resident memory of its first process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024

    def stop(self) -> None:
        """End it, if it has not ended; safe to call twice."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def has_started(self) -> bool:
        """Whether it answers; its port is known from then on. Raises: AssertionError where it has ended instead."""
        greeting = _GREETING.search(self.stderr)
        if greeting is not None:
            self.port = int(greeting[1])
            return True
        assert self.process.poll() is None, f"the gateway ended with {self.process.returncode}: {self.stderr}"
        return False


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            match = _SAMPLE.match(line)
            if match is not None:
                self.samples.append((match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])))

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that have these labels."""
        return sum(value for found, has, value in self.samples if found == name and labels.items() <= has.items())


@contextlib.contextmanager
def gateway_process(
    policy: str | None,
    *,
    environ: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    command: Path | None = None,
    stdout: IO[bytes] | None = None,
    afresh: bool = False,
) -> Iterator[Gateway]:
    """A started process, which may not answer yet. Without a policy it serves what it has built in.

    It gets `environ` besides the usual one, in which no setting of the gateway is left, and `stdout` in place of the
    file that `Gateway.stdout` reads. `command` is another installation's `slipstream`. `afresh`: in an interpreter that
    has imported nothing yet, as users start it.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-test-") as name:
        folder = Path(name)
        if policy is not None:
            (folder / "policy.yaml").write_text(policy, encoding="utf-8")
        file = [str(folder / "policy.yaml")] if policy is not None else []
        with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
            script = command or Path(sys.executable).with_name("slipstream")
            called = [str(script), "serve", *file, "--port", "0", *args]
            env = {**_clean_environment(), **_SETTINGS, **(environ or {})}
            process: subprocess.Popen[bytes] | Fork
            if afresh or command is not None or stdout is not None or not Forks.can_start(env):
                process = subprocess.Popen(
                    called, stdin=subprocess.DEVNULL, stdout=stdout or output, stderr=errors, env=env
                )
            else:
                process = _forks().start(called, env, output.fileno(), errors.fileno())
        gateway = Gateway(process, folder)
        try:
            yield gateway
        finally:
            gateway.stop()


@contextlib.asynccontextmanager
async def start_gateway(
    policy: str | None,
    *,
    environ: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    command: Path | None = None,
    stdout: IO[bytes] | None = None,
    afresh: bool = False,
) -> AsyncIterator[Gateway]:
    """A gateway that answers. Raises: AssertionError with what it said where it does not start."""
    with gateway_process(policy, environ=environ, args=args, command=command, stdout=stdout, afresh=afresh) as gateway:
        async with asyncio.timeout(_START_LIMIT_S):
            while not gateway.has_started():
                await asyncio.sleep(_POLL_S)
        yield gateway


@contextlib.contextmanager
def running_gateway(
    policy: str | None,
    *,
    environ: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
) -> Iterator[Gateway]:
    """As `start_gateway`, for fixtures that live longer than one test's event loop."""
    with gateway_process(policy, environ=environ, args=args) as gateway:
        give_up_at = time.monotonic() + _START_LIMIT_S
        while not gateway.has_started():
            assert time.monotonic() < give_up_at, f"the gateway does not start: {gateway.stderr}"
            time.sleep(_POLL_S)
        yield gateway


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of the loopback interface that is this test run's own, for servers that come and go on it.

    Held by a socket that is bound but does not listen; it lies below the range that the system gives out by itself.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while True:
            port = random.randrange(20_000, 32_000)
            with contextlib.suppress(OSError):
                holder.bind(("127.0.0.1", port))
                break
        yield port


@cache
def _forks() -> Forks:
    return Forks(_clean_environment())


def _clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLIPSTREAM_", "OTEL_"))}
    kept.pop("PROMETHEUS_MULTIPROC_DIR", None)
    # Hundreds of gateways are started, and without its bytecode each would compile what it imports.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept

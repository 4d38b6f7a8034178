"""Starts a gateway: `slipstream serve` in a child process, on a free port of loopback, with a policy file of its own.

async with child_gateway(policy, folder) as child:
    answer = await child.ask("/v1/chat/completions", {"model": "m", "messages": [...]}, key="sk-...")
    await child.reload(other_policy)
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from gateway.selftest.client import Address, Client, Fields, ReceivedAnswer, request_bytes
from gateway.settings import environment

CHAT = "/v1/chat/completions"
Policy = Mapping[str, Any]
Line = dict[str, Any]

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 10.0
_POLL_S = 0.01
_ASK_AGAIN_S = 0.2
_GREETING = re.compile(r"Slipstream listens on http://\S*?:(\d+)/v1")
_RELOADED = re.compile(r"policy revision (\w+) is in force|the changed policy file is not taken over")
_SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SERVE = "from gateway.cli.main import cli; cli(prog_name='slipstream')"


class DidNotStart(Exception):
    """The child exited or did not begin to listen; the message contains its standard error."""


class Child:
    """A gateway in a child process, and what can be observed of it from outside."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.address = Address("127.0.0.1", 0)
        self._folder = folder

    @property
    def policy_file(self) -> Path:
        """The policy file that it watches."""
        return self._folder / "policy.yaml"

    @property
    def stderr(self) -> str:
        """Its standard error so far."""
        return (self._folder / "stderr").read_text(encoding="utf-8", errors="replace")

    @property
    def stdout(self) -> str:
        """Its standard output so far, which is the access log."""
        return (self._folder / "stdout").read_text(encoding="utf-8", errors="replace")

    @property
    def log(self) -> list[Line]:
        """The lines of the access log so far; it is written ten times a second."""
        return [json.loads(line) for line in self.stdout.splitlines(keepends=True) if line.endswith("\n")]

    async def wait_log(self, wanted: Callable[[Line], bool] = bool, count: int = 1, timeout_s: float = 5.0) -> Line:
        """Wait for `count` log lines that are `wanted`, and return the last one. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(found := [line for line in self.log if wanted(line)]) < count:
                await asyncio.sleep(_POLL_S)
        return found[count - 1]

    async def connect(self, *, receive_buffer: int | None = None) -> Client:
        """A connection to it. Raises: OSError."""
        return await Client.open(self.address, receive_buffer=receive_buffer)

    async def ask(
        self, path: str, body: object = None, *, key: str = "", headers: Fields = (), timeout_s: float = 30.0
    ) -> ReceivedAnswer:
        """One request on a connection of its own; without a body a GET. Raises: OSError, TimeoutError."""
        return await ask(self.address, path, body, key=key, headers=headers, timeout_s=timeout_s)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that have these labels."""
        found = await self.metrics()
        return sum(value for known, has, value in found if known == name and labels.items() <= has.items())

    async def metrics(self) -> list[tuple[str, dict[str, str], float]]:
        """Every sample of a scrape: name, labels, value."""
        text = (await self.ask("/metrics")).body.decode("utf-8", "replace")
        matches = [match for line in text.splitlines() if (match := _SAMPLE.match(line))]
        return [(match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])) for match in matches]

    async def ledger(self, count: int, timeout_s: float = 15.0) -> list[Line]:
        """What `slipstream ledger export` says of its calls, once they are `count`, or at the end of the time.

        Nothing where it keeps no ledger.
        """
        command = (sys.executable, "-c", _SERVE, "ledger", "export", "--config", str(self.policy_file))
        give_up_at = time.monotonic() + timeout_s
        while True:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=_environment()
            )
            said, _ = await process.communicate()
            calls = [json.loads(line) for line in said.splitlines()]
            if len(calls) >= count or time.monotonic() > give_up_at or process.returncode:
                return calls
            await asyncio.sleep(_ASK_AGAIN_S)

    async def reload(self, policy: Policy | str) -> bool:
        """Replace the policy file, send SIGHUP, and wait: whether the policy was accepted. Raises: TimeoutError."""
        since = len(self.stderr)
        self.write_policy(policy)
        self.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(_START_LIMIT_S):
            while (match := _RELOADED.search(self.stderr, since)) is None:
                await asyncio.sleep(_POLL_S)
        return match[1] is not None

    def write_policy(self, policy: Policy | str) -> None:
        """Replace the policy file atomically; the gateway notices it by itself."""
        fresh = self._folder / "policy.new"
        fresh.write_text(policy_text(policy), encoding="utf-8")
        fresh.replace(self.policy_file)

    async def wait_exit(self, timeout_s: float = _STOP_LIMIT_S) -> int:
        """The exit code, once there is one. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while (code := self.process.poll()) is None:
                await asyncio.sleep(_POLL_S)
        return code

    def memory_bytes(self) -> int | None:
        """Resident memory of its first process; None if the system does not report it."""
        return _status(self.process.pid, "VmRSS")

    def num_files(self) -> int | None:
        """Open files and sockets of its first process; None if the system does not report them."""
        folder = Path(f"/proc/{self.process.pid}/fd")
        return sum(1 for _ in folder.iterdir()) if folder.is_dir() else None

    def stop(self) -> None:
        """Stop the process, if it still runs. Safe to call twice."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@asynccontextmanager
async def child_gateway(
    policy: Policy | str,
    folder: Path,
    *,
    environ: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    first: str = "",
) -> AsyncIterator[Child]:
    """Start a gateway and wait until it listens. Its files are written below `folder`.

    `environ` is added to the inherited environment, from which the gateway's settings are removed. `first` is Python
    code that the process runs before the gateway.

    Raises: DidNotStart.
    """
    own = Path(tempfile.mkdtemp(prefix="gateway-", dir=folder))
    (own / "policy.yaml").write_text(policy_text(policy), encoding="utf-8")
    command = [sys.executable, "-c", f"{first}\n{_SERVE}", "serve", str(own / "policy.yaml"), "--port", "0", *args]
    child = Child(_start(command, own, {"SLIPSTREAM_DRAIN_LIMIT": "10s", **(environ or {})}), own)
    try:
        child.address = Address("127.0.0.1", await _wait_started(child))
        yield child
    finally:
        child.stop()


async def ask(
    address: Address, path: str, body: object = None, *, key: str = "", headers: Fields = (), timeout_s: float = 30.0
) -> ReceivedAnswer:
    """One request on a connection of its own; without a body a GET. Raises: OSError, TimeoutError."""
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = [*headers, *((("authorization", f"Bearer {key}"),) if key else ())]
    client = await Client.open(address)
    try:
        client.send(request_bytes(address.prefix + path, raw, fields, "GET" if body is None else "POST"))
        return await client.answer(timeout_s)
    finally:
        client.close()


def policy_text(policy: Policy | str) -> str:
    """The text of a policy file."""
    return policy if isinstance(policy, str) else yaml.safe_dump(dict(policy), sort_keys=False)


def _start(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env={**_environment(), **environ}
        )


async def _wait_started(child: Child) -> int:
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            while (greeting := _GREETING.search(child.stderr)) is None:
                if child.process.poll() is not None:
                    raise DidNotStart(f"the gateway ended with {child.process.returncode}: {child.stderr.strip()}")
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise DidNotStart(f"the gateway says nothing for {_START_LIMIT_S:.0f} s: {child.stderr.strip()}") from error
    return int(greeting[1])


def _status(pid: int, name: str) -> int | None:
    path = Path(f"/proc/{pid}/status")
    if not path.is_file():
        return None
    found = re.search(rf"{name}:\s+(\d+) kB", path.read_text(encoding="ascii", errors="replace"))
    return int(found[1]) * 1024 if found else None


def _environment() -> dict[str, str]:
    """The environment that the child inherits: everything except the settings of a gateway."""
    strange = ("SLIPSTREAM_", "OTEL_", "PROMETHEUS_MULTIPROC_DIR")
    return {name: value for name, value in environment().items() if not name.startswith(strange)}

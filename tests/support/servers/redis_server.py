"""A real redis-server on a free port with nothing on disk; it can be paused, killed and started again."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import pytest

from backends.clock import Clock
from policies.cache.redis_link import RedisLink, build_redis_link
from policies.cache.settings import RedisStore

_START_LIMIT_S = 5.0
_MAX_ATTEMPTS = 3
_FIRST_WITH_VECTORS = 8


class RedisServer:
    """One server process, ended by its own id. `async with` starts and ends it; skips where there is no such Redis.

    `vectors`: one that has vector sets (8), or one that has not (7); None for whichever is installed. `options` are
    further ones of its configuration. Nodes of a cluster find each other at `bus_port`.
    """

    def __init__(self, *, vectors: bool | None = None, options: Mapping[str, str] = MappingProxyType({})) -> None:
        self._program = _find_program(vectors)
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="slipstream-redis-")
        self._process: asyncio.subprocess.Process | None = None
        self.port, self.bus_port = _free_port(), _free_port()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> Self:
        for attempts_left in reversed(range(_MAX_ATTEMPTS)):
            try:
                await self.start()
            except OSError:
                # Somebody else has taken the port meanwhile, or the machine is very busy.
                await self.kill()
                self.port, self.bus_port = _free_port(), _free_port()
                if not attempts_left:
                    self._folder.cleanup()
                    raise
            else:
                break
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.kill()
        self._folder.cleanup()

    async def start(self) -> None:
        """Start it, empty, on its port, and wait until it answers. Raises: OSError where it does not within seconds."""
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": self._folder.name}
        options |= self._options
        if "cluster-enabled" in options:
            # Otherwise it is 10,000 above the port, for which some of the free ones are too high.
            options["cluster-port"] = self.bus_port
        log = Path(self._folder.name) / "log"
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                self._program, *arguments, stdout=output, stderr=output, stdin=asyncio.subprocess.DEVNULL
            )
        async with asyncio.timeout(_START_LIMIT_S):
            while not await self._answers():
                if self._process.returncode is not None:
                    raise ConnectionRefusedError(log.read_text(errors="replace")[-500:])
                await asyncio.sleep(0.01)

    async def restart(self, *, vectors: bool) -> None:
        """Start one of that kind in its place, empty."""
        await self.kill()
        self._program = _find_program(vectors)
        await self.start()

    async def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop it from answering; its sockets stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it answer again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the server is running"
        self._process.send_signal(number)

    async def _answers(self) -> bool:
        """Whether this process, and no other at its port, says who it is."""
        assert self._process is not None, "it has been started"
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            writer.write(b"INFO server\r\nQUIT\r\n")
            return f"process_id:{self._process.pid}\r\n".encode() in await reader.read()
        except OSError:
            return False
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def redis_policy(url: str, timeout: str = "30ms") -> RedisStore:
    """The section of a policy file that names this Redis."""
    section = {"url": "env:REDIS_URL", "timeout": timeout, "prefix": "test"}
    return RedisStore.model_validate(section, context={"environ": {"REDIS_URL": url}})


def semantic_link(policy: RedisStore, clock: Clock) -> RedisLink:
    """The link that a semantic cache would have to this Redis."""
    return build_redis_link(policy, clock, part="semantic", name="redis of the semantic cache")


def _find_program(vectors: bool | None) -> str:
    installed = shutil.which("redis-server")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    unpacked = shutil.which(caches / "slipstream-tests" / "redis8" / "redis-server")
    for program in (installed, unpacked):
        if program is not None and (vectors is None or _has_vectors(program) == vectors):
            return program
    which = {None: "redis-server", True: "a Redis 8", False: "a Redis without vector sets"}[vectors]
    pytest.skip(f"{which} is not installed; see tests/install_services.sh")


@functools.cache
def _has_vectors(program: str) -> bool:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_START_LIMIT_S, check=True)
    version = re.search(r"v=(\d+)\.", shown.stdout)
    assert version is not None, shown.stdout
    return int(version[1]) >= _FIRST_WITH_VECTORS


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

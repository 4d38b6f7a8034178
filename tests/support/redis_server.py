"""A real redis-server on a free port with nothing on disk; it can be paused, killed and started again."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from policies.schema import RedisStore

_START_LIMIT_S = 5.0


class RedisServer:
    """One server process, ended by its own id. `async with` starts and ends it; skips where redis-server is missing."""

    def __init__(self) -> None:
        self._program = shutil.which("redis-server")
        if self._program is None:
            pytest.skip("redis-server is not installed; see tests/install_services.sh")
        self._folder = tempfile.TemporaryDirectory(prefix="slipstream-redis-")
        self._process: asyncio.subprocess.Process | None = None
        self.port = _free_port()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.kill()
        self._folder.cleanup()

    async def start(self) -> None:
        """Start it, empty, on its port, and wait until it accepts connections."""
        assert self._program is not None, "the constructor has looked for it"
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": self._folder.name}
        log = Path(self._folder.name) / "log"
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                self._program, *arguments, stdout=output, stderr=output, stdin=asyncio.subprocess.DEVNULL
            )
        async with asyncio.timeout(_START_LIMIT_S):
            while not await self._accepts():
                await asyncio.sleep(0.01)

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

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True


def redis_policy(url: str, timeout: str = "30ms") -> RedisStore:
    """The section of a policy file that names this Redis."""
    section = {"url": "env:REDIS_URL", "timeout": timeout, "prefix": "test"}
    return RedisStore.model_validate(section, context={"environ": {"REDIS_URL": url}})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""A real Redis for one check, where its program and its client are: on a free port of loopback, nothing on disk."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

_PROGRAM = "redis-server"
_START_LIMIT_S = 10.0
_POLL_S = 0.02


@asynccontextmanager
async def own_redis(folder: Path) -> AsyncIterator[str | None]:
    """Its URL while entered; None where there is no such program or no client for it, or it does not answer."""
    program = shutil.which(_PROGRAM)
    if program is None or find_spec("redis") is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    arguments = ("--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder))
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(program, *arguments, stdout=nowhere, stderr=nowhere)
    try:
        yield f"redis://127.0.0.1:{port}/0" if await _answers(port) else None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _answers(port: int) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_LIMIT_S):
            while True:
                with suppress(OSError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(b"PING\r\n")
                    said = await reader.readline()
                    writer.close()
                    if said.startswith(b"+PONG"):
                        return True
                await asyncio.sleep(_POLL_S)
    return False

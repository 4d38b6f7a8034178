"""A gateway as it is written in an afternoon: passes everything on and believes everything. It must fail the selftest.

It takes the place of `child_gateway`: the first backend of the policy gets every request with its head unread, and
whatever comes back goes to the client. A stream whose upstream breaks off is ended in good order, with `[DONE]`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from gateway.selftest.client import Address
from gateway.selftest.run import Child, Policy, policy_text

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)


class _Process:
    """Stands for a process that cannot end."""

    pid = 0

    def poll(self) -> int | None:
        """It lives."""
        return None


class NaiveProxy(Child):
    """Serves while entered; a reload only changes where it sends everything."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_Process(), folder)  # type: ignore[arg-type]  # what is asked of a process is there
        self.cached: dict[bytes, bytes] = {}

    async def reload(self, policy: Policy | str) -> bool:
        """Take every policy."""
        self.write_policy(policy)
        return True

    def upstream(self) -> tuple[str, int]:
        """Where the first backend is."""
        document: Any = yaml.safe_load(self.policy_file.read_text(encoding="utf-8"))
        parts = urlsplit(next(iter(document["backends"].values()))["base_url"])
        return parts.hostname or "", parts.port or 80

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one request on and its answer back; identical ones are answered from memory, whoever asks."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            found = _LENGTH.search(head)
            body = await reader.readexactly(int(found[1]) if found else 0)
            if body not in self.cached:
                self.cached[body] = await self._fetch(head + body)
            writer.write(self.cached[body])
            await writer.drain()
        writer.close()

    async def _fetch(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self.upstream())
        writer.write(request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
        received = b""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(2):
                while piece := await reader.read(65536):
                    received += piece
                    if received.endswith(b"0\r\n\r\n"):
                        break
        writer.close()
        head, _, body = received.partition(b"\r\n\r\n")
        if b"chunked" in head.lower():
            body = re.sub(rb"(?:^|\r\n)[0-9a-f]+\r\n", b"", body)
            head = re.sub(rb"\r\ntransfer-encoding: chunked", b"", head, flags=re.IGNORECASE)
            if b"[DONE]" not in body:
                body += b"data: [DONE]\n\n"
            head += b"\r\ncontent-length: %d" % len(body)
        return head + b"\r\n\r\n" + body


@asynccontextmanager
async def naive_proxy(policy: Policy | str, folder: Path, **how: object) -> AsyncIterator[Child]:
    """As `child_gateway`; `how` changes nothing."""
    proxy = NaiveProxy(folder)
    for name in ("stdout", "stderr"):
        (folder / name).touch()
    proxy.policy_file.write_text(policy_text(policy), encoding="utf-8")
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield proxy
    finally:
        server.close()

"""A gateway as it is written in an afternoon: it passes everything on and believes everything; it fails the selftest.

`naive_proxy` takes the place of `child_gateway`, and so does `started` of a kind with yet another fault. The first
backend of the policy gets every request with the client's own head. Whatever comes back goes to the client, a broken
stream with a `[DONE]` of its own; and it is remembered by the body that was asked, for everybody. Clients may say where
to send a call, redirects are followed, models are labels, prompts are logged.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from gateway.selftest.bench import Start
from gateway.selftest.client import Address, Client, ReceivedAnswer
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
        self.remembered: dict[bytes, bytes] = {}
        self.models: set[str] = set()

    async def reload(self, policy: Policy | str) -> bool:
        """Take every policy."""
        self.write_policy(policy)
        return True

    def memory_bytes(self) -> int | None:
        """Nobody knows."""
        return None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request after the other."""
        gone = (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError)
        # What is no request at all ends the connection.
        with suppress(*gone, IndexError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = _LENGTH.search(head)
                body = await reader.readexactly(int(found[1]) if found else 0)
                writer.write(await self._answer(head, body))
                await writer.drain()
        writer.close()

    async def _answer(self, head: bytes, body: bytes) -> bytes:
        path = head.split(b" ", 2)[1].decode("latin-1")
        if path == "/metrics":
            text = "".join(f'requests{{model="{model}"}} 1\n' for model in self.models)
            return whole(200, "text/plain", text.encode())
        if path in ("/health", "/ready"):
            return whole(200, "text/plain", b"ok")
        asked: Any = {}
        with suppress(ValueError, RecursionError):
            asked = json.loads(body)
        asked = asked if isinstance(asked, dict) else {}
        self.models.add(str(asked.get("model", path)))
        with (self._folder / "stdout").open("a") as log:
            log.write(json.dumps({"asked": body.decode("utf-8", "replace")}) + "\n")
        place = self.place(asked, body)
        if place in self.remembered:
            return self.remembered[place].replace(b"x-cache: miss", b"x-cache: hit", 1)
        answer = await self.fetch(path, head, body, str(asked.get("api_base", "")))
        self.remembered[place] = answer
        return answer

    def place(self, asked: dict[str, Any], body: bytes) -> bytes:
        """By what an answer is remembered."""
        return body

    async def fetch(self, path: str, head: bytes, body: bytes, base: str) -> bytes:
        """What the upstream answers."""
        document: Any = yaml.safe_load(self.policy_file.read_text(encoding="utf-8"))
        parts = urlsplit(base or next(iter(document["backends"].values()))["base_url"])
        try:
            answer = await _asked(parts.port or 80, head + body)
            if 300 <= answer.status < 400:
                answer = await _asked(urlsplit(answer.header("location")).port or 80, head + body)
        except OSError as error:
            return whole(502, "text/plain", str(error).encode())
        if answer.is_stream and not answer.is_done:
            answer.body += b"data: [DONE]\n\n"
        return whole(answer.status, answer.header("content-type"), bytes(answer.body))


async def _asked(port: int, request: bytes) -> ReceivedAnswer:
    client = await Client.open(Address("127.0.0.1", port))
    try:
        client.send(request)
        return await client.answer(2.0)
    finally:
        client.close()


def whole(status: int, content_type: str, body: bytes) -> bytes:
    """An answer."""
    lines = [f"HTTP/1.1 {status} So", f"content-type: {content_type}", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "x-cache: miss", "", ""]).encode("latin-1") + body


def started(kind: type[NaiveProxy]) -> Start:
    """Starts one of that kind, as `child_gateway` does; how it is to be started changes nothing."""

    @asynccontextmanager
    async def start(policy: Policy | str, folder: Path, **how: object) -> AsyncIterator[Child]:
        proxy = kind(folder)
        for name in ("stdout", "stderr"):
            (folder / name).touch()
        proxy.policy_file.write_text(policy_text(policy), encoding="utf-8")
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 26)
        proxy.address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            yield proxy
        finally:
            server.close()

    return start


naive_proxy = started(NaiveProxy)

"""Proxies with one more fault each than `naive_proxy`, for checks of the selftest that it gets through."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.support.servers.naive_proxy import NaiveProxy, whole


class RemembersByModel(NaiveProxy):
    """Takes all questions to a model for the same one."""

    def place(self, asked: dict[str, Any], body: bytes) -> bytes:
        """The model."""
        return str(asked.get("model")).encode()


class NeverGivesUp(NaiveProxy):
    """Asks an upstream that is full again at once, three times more for each call."""

    async def fetch(self, path: str, head: bytes, body: bytes, base: str) -> bytes:
        """The last answer."""
        for _ in range(3):
            answer = await super().fetch(path, head, body, base)
            if not answer.startswith(b"HTTP/1.1 429 "):
                return answer
        return await super().fetch(path, head, body, base)


class NeedsRedis(NaiveProxy):
    """Cannot answer while its Redis does not take what it writes there."""

    async def fetch(self, path: str, head: bytes, body: bytes, base: str) -> bytes:
        """The upstream's answer, once it is stored."""
        try:
            async with asyncio.timeout(0.1):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._redis_port())
                try:
                    writer.write(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n")
                    is_stored = (await reader.readline()).startswith(b"+OK")
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError):
            is_stored = False
        return await super().fetch(path, head, body, base) if is_stored else whole(500, "text/plain", b"no Redis")

    def _redis_port(self) -> int:
        document: Any = yaml.safe_load(self.policy_file.read_text(encoding="utf-8"))
        place = Path(document["stores"]["redis"]["url"].removeprefix("file:"))
        return urlsplit(place.read_text(encoding="utf-8")).port or 0

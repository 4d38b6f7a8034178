"""A faulty Redis server: as much of RESP as the cache needs, and a mode for each kind of failure."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Literal, Self

Mode = Literal["honest", "silent", "read-only", "full", "wrong type", "loading", "garbage", "damaged", "cut", "down"]

_REFUSALS: dict[Mode, bytes] = {
    "read-only": b"-READONLY You can't write against a read only replica.\r\n",
    "full": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "wrong type": b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
}
_WRITES = frozenset({b"SET", b"DEL", b"PEXPIRE"})


class LyingRedis:
    """Listens on a free port of loopback while entered."""

    def __init__(self) -> None:
        self.mode: Mode = "honest"
        self.values: dict[bytes, bytes] = {}
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The value for a policy's secret."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
                while True:
                    words = await _command(reader)
                    if self.mode == "silent":
                        # Wait until the gateway gives up.
                        await reader.read()
                    if self.mode in ("silent", "cut"):
                        break
                    writer.write(self._reply(words))
                    await writer.drain()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def _reply(self, words: list[bytes]) -> bytes:
        name = words[0].upper()
        refusal = _REFUSALS.get(self.mode)
        if refusal is not None and (self.mode in ("wrong type", "loading") or name in _WRITES):
            return refusal
        if name == b"MGET":
            found = [self._value(key) for key in words[1:]]
            return b"*%d\r\n%b" % (len(found), b"".join(map(_bulk, found)))
        if name == b"GET":
            return _bulk(self._value(words[1]))
        if name == b"SET":
            self.values[words[1]] = words[2]
        elif name == b"DEL":
            return b":%d\r\n" % sum(self.values.pop(key, None) is not None for key in words[1:])
        return b"+PONG\r\n" if name == b"PING" else b"+OK\r\n"

    def _value(self, key: bytes) -> bytes | None:
        value = self.values.get(key)
        if self.mode == "garbage":
            return b"\x00\xff{not an answer" * 7
        if self.mode == "damaged" and value is not None:
            middle = len(value) // 2
            return value[:middle] + bytes([value[middle] ^ 0x55]) + value[middle + 1 :]
        return value


def _bulk(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    count = int((await reader.readuntil(b"\r\n"))[1:])
    words = []
    for _ in range(count):
        length = int((await reader.readuntil(b"\r\n"))[1:])
        words.append((await reader.readexactly(length + 2))[:-2])
    return words

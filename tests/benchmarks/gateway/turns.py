"""Requests in turns: what benchmarks that compare ways or revisions of a gateway with each other have in common.

Some hundred requests at a time over the same few connections, so that all that is compared meets the same moments of a
machine that is shared. The upstream answers at once, whole or as a short stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path

CONNECTIONS = 16
_USAGE = {"prompt_tokens": 400, "completion_tokens": 64, "total_tokens": 464}
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class AnsweringUpstream(asyncio.Protocol):
    """Answers every request with the same bytes, whole or streamed."""

    _whole: bytes
    _stream: bytes

    def __init__(self) -> None:
        message = {"role": "assistant", "content": "word " * 64}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        body = json.dumps({**chunk, "choices": [{"index": 0, "message": message}], "usage": _USAGE}).encode()
        self._whole = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        words = [{**chunk, "choices": [{"index": 0, "delta": {"content": "word "}}]} for _ in range(8)]
        events = [json.dumps(each) for each in (*words, {**chunk, "choices": [], "usage": _USAGE})]
        data = "".join(f"data: {event}\n\n" for event in (*events, "[DONE]")).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._stream = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = self._read.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and length is not None and len(body) >= int(length[1]):
            self._read = b""
            self._transport.write(self._stream if b'"stream": true' in body else self._whole)


class Client(asyncio.Protocol):
    """Asks again as soon as it has its answer, as long as the turn has requests left."""

    def __init__(self) -> None:
        self.turn: Turn | None = None
        self._read = bytearray()
        self._whole = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, turn: Turn) -> None:
        self.turn = turn
        self._transport.write(turn.request)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = self._read.partition(b"\r\n\r\n")
        if not end:
            return
        assert head.startswith(b"HTTP/1.1 200"), f"the gateway said {bytes(self._read[:500])!r}"
        length = _LENGTH.search(head)
        if len(body) >= int(length[1]) if length is not None else body.endswith(b"0\r\n\r\n"):
            self._read.clear()
            assert self.turn is not None, "an answer to nothing"
            self.turn.answered(self)


class Turn:
    """Some requests of one way, to be answered by all connections together."""

    def __init__(self, request: bytes, number: int) -> None:
        self.request = request
        self._to_ask = number
        self._to_come = number
        self._done = asyncio.get_running_loop().create_future()

    def answered(self, client: Client) -> None:
        self._to_come -= 1
        if self._to_ask:
            self._to_ask -= 1
            client.ask(self)
        elif not self._to_come:
            self._done.set_result(None)

    async def take(self, clients: list[Client]) -> None:
        self._to_ask -= len(clients)
        for client in clients:
            client.ask(self)
        await self._done


async def connect(port: int) -> list[Client]:
    """Clients on connections of their own."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Client, "127.0.0.1", port))[1] for _ in range(CONNECTIONS)]


def stay_awake() -> None:
    """Keeps the loop from sleeping."""
    asyncio.get_running_loop().call_soon(stay_awake)


def cpu_us(pid: int) -> float:
    """What all threads of a process have taken of a processor; Linux only."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e3

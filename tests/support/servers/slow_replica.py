"""A chat server with the delays of a model, in a process of its own: places, prompts, first tokens, gaps.

with slow_replica(Pace(places=32, first_s=0.5)) as port:
    ...  # POST /v1/chat/completions

A request waits for a place, in the order of arrival, then for its turn at the prompts, one after the other, then for
its first token; then come its `max_tokens`. Run as a module it is that process: it prints its port and serves until its
standard input ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httptools
import msgspec
import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Pace(msgspec.Struct, frozen=True):
    """How long what takes. `places`: requests at once; `prompt_s`: each prompt alone; `first_s`: on top of that."""

    places: int
    first_s: float
    prompt_s: float = 0.0
    gap_s: float = 0.05


@contextmanager
def slow_replica(pace: Pace) -> Iterator[int]:
    """Its port, while it runs."""
    command = [sys.executable, "-m", "tests.support.servers.slow_replica", msgspec.json.encode(pace).decode()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


class _Replica:
    """What all connections share."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.places = asyncio.Semaphore(pace.places)
        self._prompts_until = 0.0

    async def begin(self) -> None:
        """Wait for the first token; there is a place."""
        loop = asyncio.get_running_loop()
        self._prompts_until = max(loop.time(), self._prompts_until) + self.pace.prompt_s
        await asyncio.sleep(self._prompts_until - loop.time() + self.pace.first_s)


class _Connection(asyncio.Protocol):
    """One connection, one request at a time. Also llhttp's callback object."""

    def __init__(self, replica: _Replica) -> None:
        self._replica = replica
        self._body = b""
        self._task: asyncio.Task[None] | None = None
        self._parser: Any = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        asked = msgspec.json.decode(self._body)
        self._body = b""
        self._task = asyncio.get_running_loop().create_task(self._answer(asked["max_tokens"], len(asked["messages"])))

    async def _answer(self, num_tokens: int, num_messages: int) -> None:
        replica = self._replica
        async with replica.places:
            await replica.begin()
            self._transport.write(_HEAD + _event({"delta": {"role": "assistant", "content": "tok"}}))
            for _ in range(num_tokens - 1):
                await asyncio.sleep(replica.pace.gap_s)
                self._transport.write(_event({"delta": {"content": " tok"}}))
        usage = {"prompt_tokens": 100 * num_messages, "completion_tokens": num_tokens}
        last = _event({"delta": {}, "finish_reason": "stop"}) + _event(None, usage=usage)
        self._transport.write(last + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _event(choice: dict[str, Any] | None, **fields: object) -> bytes:
    choices = [] if choice is None else [{"index": 0, **choice}]
    event = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **fields}
    return _chunk(b"data: " + msgspec.json.encode(event) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    replica = _Replica(pace)
    server = await loop.create_server(lambda: _Connection(replica), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_serve(msgspec.json.decode(sys.argv[1], type=Pace)))

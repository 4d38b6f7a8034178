"""A long line on this machine: a TCP proxy that hands on every byte so much later, in both directions."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

_PIECE = 65536


class DelayLine:
    """In front of a port of the loopback interface while entered. What a connection carries comes `delay_s` later.

    Unlike `SlowProxy` it holds any number of pieces at once, so that it is late and never narrow.
    """

    def __init__(self, port: int, delay_s: float) -> None:
        self._target = port
        self._delay_s = delay_s
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, there_writer))
                group.create_task(self._pass_on(there_reader, writer))
        except* OSError:
            # Reset by one end, so it ends for the other.
            pass
        finally:
            for each in (writer, there_writer):
                each.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while piece := await reader.read(_PIECE):
            loop.call_later(self._delay_s, writer.write, piece)
        loop.call_later(self._delay_s, writer.close)
        await asyncio.sleep(self._delay_s)

"""A TCP proxy on a real socket that answers as late as a test wants: a service that is slow, not dead."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class SlowProxy:
    """Passes everything on to a port of the loopback interface while entered; replies wait `delay_s` each.

    `delay_s` may be changed at any time, and so may `target`, for connections to come. `num_requests` counts the pieces
    that came from clients.
    """

    def __init__(self, port: int, *, delay_s: float = 0.0) -> None:
        self.target = port
        self.delay_s = delay_s
        self.port = 0
        self.num_requests = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def cut(self) -> None:
        """End every connection now; replies that wait are lost."""
        for task in self._tasks:
            task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, there_writer, is_reply=False))
                group.create_task(self._pass_on(there_reader, writer, is_reply=True))
        finally:
            for each in (writer, there_writer):
                each.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool) -> None:
        while piece := await reader.read(65536):
            if is_reply:
                await asyncio.sleep(self.delay_s)
            else:
                self.num_requests += 1
            writer.write(piece)
        writer.close()

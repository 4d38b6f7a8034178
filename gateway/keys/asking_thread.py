"""A thread that asks a store which may never answer: calls do not wait for it, and neither does the process's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

_T = TypeVar("_T")


class AskingThread:
    """Does one piece of work after the other, from its first one to `close`."""

    def __init__(self, name: str) -> None:
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        # Interpreters wait for the threads of an executor, but not for a daemon.
        self._thread = Thread(target=self._run, name=name, daemon=True)

    async def ask(self, work: Callable[[], _T]) -> _T:
        """What the work comes to. Who is cancelled calls it off, unless it has begun."""
        if not self._thread.is_alive():
            self._thread.start()
        future: Future[_T] = Future()
        self._waiting.put((future, work))
        return await asyncio.wrap_future(future)

    def close(self, last: Callable[[], None]) -> None:
        """End after what waits, and after this."""
        if self._thread.is_alive():
            self._waiting.put((Future(), last))
            self._waiting.put(None)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

"""An asyncio event loop without the world: when nothing is ready, its time jumps to the next timer.

Deterministic: what is ready runs in the order in which it became so, and timers of the same moment in the order in
which they were made. There are no sockets, threads or signals; asking for them raises NotImplementedError.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

START_WALL_S = 1_767_225_600.0
"""What the wall clock shows at the loop's start: the first moment of 2026."""


class Deadlock(RuntimeError):
    """The main task waits for something that nobody will ever do."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs tasks as asyncio's own loops do, in its own time, which starts at 0 and never waits.

    An exception that nobody handles ends `run_until_complete` with it.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        # A timer's number decides between timers of the same moment.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._num_timers = 0
        self._num_cancelled = 0
        self._is_running = False
        self._is_closed = False
        self._failure: BaseException | None = None

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def run_until_complete(self, future: Generator[Any, None, _T] | Awaitable[_T]) -> _T:
        """Run until it is done, and return what it returns.

        Raises: Deadlock where it waits and nothing is left to happen; else what it raises.
        """
        self._check_closed()
        if self._is_running or asyncio._get_running_loop() is not None:  # noqa: SLF001  # for loops to use
            raise RuntimeError("an event loop is running already")
        main: asyncio.Future[_T] = asyncio.ensure_future(cast(Coroutine[Any, Any, _T], future), loop=self)
        self._is_running = True
        asyncio._set_running_loop(self)  # noqa: SLF001  # for loops to use
        ready = self._ready
        try:
            while not main.done():
                if not ready:
                    self._jump()
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001  # for loops to use
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001  # for loops to use
            self._is_running = False
        return main.result()

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run it after what is ready already."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run it `delay` virtual seconds from now."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run it at that moment; a moment that is past is now."""
        self._check_closed()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._num_timers += 1
        heapq.heappush(self._timers, (when, self._num_timers, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        """Run a coroutine as a task."""
        self._check_closed()
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A task died unseen, or a callback raised: the simulation is wrong from here on, so it ends."""
        self._failure = context.get("exception") or RuntimeError(context["message"])

    def get_debug(self) -> bool:
        """Never: debugging measures real time."""
        return False

    def is_running(self) -> bool:
        """Inside `run_until_complete`."""
        return self._is_running

    def is_closed(self) -> bool:
        """After `close`."""
        return self._is_closed

    def close(self) -> None:
        """Drop what is left."""
        if self._is_running:
            raise RuntimeError("the loop is running")
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A timer says that it is cancelled; part of what asyncio's timers ask of their loop."""
        self._num_cancelled += 1
        if self._num_cancelled > 100 and 2 * self._num_cancelled > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._num_cancelled = 0

    def _jump(self) -> None:
        """To the next timer; makes ready all that are due then."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._num_cancelled = max(0, self._num_cancelled - 1)
        if not timers:
            raise Deadlock(f"after {self._now:.6g} virtual seconds there is nothing left to wait for")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            handle = heapq.heappop(timers)[2]
            if not handle.cancelled():
                self._ready.append(handle)

    def _check_closed(self) -> None:
        if self._is_closed:
            raise RuntimeError("the loop is closed")


class VirtualClock:
    """A loop's time as a `Clock`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.now = loop.time

    def wall(self) -> float:
        """Seconds since the Unix epoch, moving with `now`."""
        return START_WALL_S + self.now()

    async def sleep(self, seconds: float) -> None:
        """Wait, in virtual time."""
        await asyncio.sleep(seconds)

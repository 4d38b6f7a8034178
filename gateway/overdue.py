"""A backstop behind `timeouts.total`: calls whose backend ignores its deadline are broken off a moment later.

Backends hold their own deadlines. This is for those that do not, and costs a call two entries in a dictionary: one
timer looks at all calls now and then, and runs only while there are some.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from backends.clock import Clock
from backends.errors import TotalTimeout

GRACE_S = 1.0
"""How much longer than its deadline a call may take: whoever holds it says best why it was late."""
_TICK_S = 0.25

Task = asyncio.Task[Any]


class Flow(Protocol):
    """How a call's client takes its answer."""

    write_paused: bool
    """It has not read what it was sent: what is late now is the client."""


class Overdue:
    """The calls that are being answered, by the task that does it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watched: dict[Task, tuple[float, Flow]] = {}
        self._broken_off: set[Task] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, task: Task, deadline: float, flow: Flow) -> None:
        """Cancel the task after its deadline (monotonic seconds), unless it is its client that it waits for."""
        self._watched[task] = deadline, flow
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._look)

    def release(self, task: Task) -> None:
        """The call is over. Safe to call twice."""
        self._watched.pop(task, None)
        if self._broken_off:
            self._broken_off.discard(task)

    def error_for(self, task: Task) -> TotalTimeout | None:
        """Why that task was cancelled, if it was this; asked once, by who catches the cancellation."""
        if task not in self._broken_off:
            return None
        self._broken_off.discard(task)
        return TotalTimeout("the backend had not answered when the call's time was up, and did not stop by itself")

    def _look(self) -> None:
        self._timer = None
        latest = self._clock.now() - GRACE_S
        for task, (deadline, flow) in list(self._watched.items()):
            if deadline <= latest and not flow.write_paused:
                del self._watched[task]
                self._broken_off.add(task)
                task.cancel()
        if self._watched:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._look)

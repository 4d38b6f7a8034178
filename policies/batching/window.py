"""When work goes: at once while a place is free, else together as soon as one is. Nothing waits for an idle backend.

Pure: no clock, no event loop, no idea of what the work is. One window is for work that may go together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

import msgspec


class WaitingItem(Protocol):
    """Something that waits, equal only to itself."""

    @property
    def size(self) -> int:
        """How many of a batch's inputs it is."""

    @property
    def num_bytes(self) -> int:
        """How many of a batch's bytes it is."""


Work = TypeVar("Work", bound=WaitingItem)


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and bytes of a batch, batches out at once, inputs that wait. What alone is over a limit goes alone."""

    max_batch: int
    max_bytes: int
    max_in_flight: int
    max_waiting: int


class BatchWindow(Generic[Work]):
    """Work in the order of its coming. Whoever adds to it or frees a place asks `release` until nothing comes."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        # A dict for its order, and since anyone in it may leave.
        self._waiting: dict[Work, None] = {}
        self._cut: deque[list[Work]] = deque()
        self.num_waiting = 0
        """Inputs that wait."""
        self.in_flight = 0
        """Batches that hold a place."""

    @property
    def is_empty(self) -> bool:
        """Nothing waits and nothing is out."""
        return not self.in_flight and not self.num_waiting

    def has_room(self, size: int) -> bool:
        """Whether so many more inputs may wait. Where nothing waits there always is: that is no queue yet."""
        return not self.num_waiting or self.num_waiting + size <= self._limits.max_waiting

    def add(self, work: Work) -> None:
        """Something new, behind all the others."""
        self._waiting[work] = None
        self.num_waiting += work.size

    def put_back(self, batches: Iterable[list[Work]]) -> None:
        """Work that was out and has to go again, in these batches and before all that waits."""
        for batch in batches:
            self._cut.append(batch)
            self.num_waiting += sum(work.size for work in batch)

    def leave(self, work: Work) -> None:
        """Take it out, wherever it waits; nothing happens if it does not."""
        if work in self._waiting:
            del self._waiting[work]
            self.num_waiting -= work.size
            return
        for batch in self._cut:
            if work in batch:
                batch.remove(work)
                self.num_waiting -= work.size

    def release(self, is_late: Callable[[Work], bool]) -> tuple[list[Work], list[Work]]:
        """What goes now, which takes a place, and what was dropped for being late. Both empty: nothing can go.

        A batch is filled past what is dropped: cutting it short for the sake of the oldest leads to ever smaller ones.
        """
        late: list[Work] = []
        batch: list[Work] = []
        if self.in_flight >= self._limits.max_in_flight:
            return batch, late
        while self._cut and not batch:
            batch = self._cut.popleft()
        if not batch:
            batch, late = self._fill(is_late)
        self.num_waiting -= sum(work.size for work in batch)
        self.in_flight += bool(batch)
        return batch, late

    def settle(self) -> None:
        """A batch gives its place back."""
        self.in_flight -= 1

    def _fill(self, is_late: Callable[[Work], bool]) -> tuple[list[Work], list[Work]]:
        late: list[Work] = []
        batch: list[Work] = []
        size = num_bytes = 0
        for work in self._waiting:
            if is_late(work):
                late.append(work)
                continue
            size += work.size
            num_bytes += work.num_bytes
            if batch and (size > self._limits.max_batch or num_bytes > self._limits.max_bytes):
                break
            batch.append(work)
        for work in late:
            self.leave(work)
        for work in batch:
            del self._waiting[work]
        return batch, late

"""When items are sent: at once while a slot is free, else together as soon as one is.

Nothing waits for an idle backend. Pure: it knows neither a clock, nor an event loop, nor what the items are.
All items of a window may share a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

import msgspec


class WaitingItem(Protocol):
    """Something that can be batched. It is equal only to itself."""

    @property
    def size(self) -> int:
        """The number of its inputs."""

    @property
    def num_bytes(self) -> int:
        """The number of its bytes."""


Item = TypeVar("Item", bound=WaitingItem)


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """At most: inputs and bytes of a batch, batches in flight, inputs that wait. A larger item is a batch by itself."""

    max_batch: int
    max_bytes: int
    max_in_flight: int
    max_waiting: int


class BatchWindow(Generic[Item]):
    """A queue of items. Whoever adds an item or frees a slot calls `release` until it returns nothing."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        # A dict keeps the order, and any item can be removed from it at once.
        self._waiting: dict[Item, None] = {}
        self._resend: deque[list[Item]] = deque()
        self.num_waiting = 0
        """The inputs that wait."""
        self.in_flight = 0
        """The batches that hold a slot."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self.in_flight and not self.num_waiting

    def has_room(self, size: int) -> bool:
        """Whether so many more inputs may wait. An empty queue takes any number: they may be a batch by themselves."""
        return not self.num_waiting or self.num_waiting + size <= self._limits.max_waiting

    def add(self, item: Item) -> None:
        """Queue an item."""
        self._waiting[item] = None
        self.num_waiting += item.size

    def put_back(self, batches: Iterable[list[Item]]) -> None:
        """Queue items that were sent and have to be sent again: in these batches, before all others."""
        for batch in batches:
            self._resend.append(batch)
            self.num_waiting += sum(item.size for item in batch)

    def remove(self, item: Item) -> None:
        """Take an item out of the queue, if it is there."""
        if item in self._waiting:
            del self._waiting[item]
            self.num_waiting -= item.size
            return
        for batch in self._resend:
            if item in batch:
                batch.remove(item)
                self.num_waiting -= item.size

    def release(self, is_late: Callable[[Item], bool]) -> tuple[list[Item], list[Item]]:
        """The next batch, which takes a slot, and the items that were dropped as late; both empty if no slot is free.

        The batch is filled up with the items after the dropped ones. Were it cut short there, batches would become
        ever smaller under overload.
        """
        late: list[Item] = []
        batch: list[Item] = []
        if self.in_flight >= self._limits.max_in_flight:
            return batch, late
        while self._resend and not batch:
            batch = self._resend.popleft()
        if not batch:
            batch, late = self._fill(is_late)
        self.num_waiting -= sum(item.size for item in batch)
        self.in_flight += bool(batch)
        return batch, late

    def free_slot(self) -> None:
        """Give back the slot of a batch."""
        self.in_flight -= 1

    def _fill(self, is_late: Callable[[Item], bool]) -> tuple[list[Item], list[Item]]:
        late: list[Item] = []
        batch: list[Item] = []
        size = num_bytes = 0
        for item in self._waiting:
            if is_late(item):
                late.append(item)
                continue
            size += item.size
            num_bytes += item.num_bytes
            if batch and (size > self._limits.max_batch or num_bytes > self._limits.max_bytes):
                break
            batch.append(item)
        for item in late:
            self.remove(item)
        for item in batch:
            del self._waiting[item]
        return batch, late

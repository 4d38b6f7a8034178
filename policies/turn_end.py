"""What is due for each call at its end, done at once for all that have ended in a turn of the event loop.

Code that a processor's caches do not hold takes three to five times as long, and between two ends of calls a gateway
does so much else that they hold nothing of what an end takes. A busy loop ends several calls in a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from policies.failures import Failures

_Item = TypeVar("_Item")


class TurnEnd(Generic[_Item]):
    """`do` is called once for each item, in their order, before anything that the loop is told of later; an error that
    it raises is noted, and keeps nothing from the others.
    """

    def __init__(self, do: Callable[[_Item], None], failures: Failures) -> None:
        self._do = do
        self._failures = failures
        self._items: list[_Item] = []

    def add(self, item: _Item) -> None:
        """It is due."""
        if not self._items:
            asyncio.get_running_loop().call_soon(self.flush)
        self._items.append(item)

    def flush(self) -> bool:
        """Do what is due now, for whoever needs it done: whether anything was."""
        items, self._items = self._items, []
        for item in items:
            try:
                self._do(item)
            except Exception as error:  # the border of background work: the other calls must be accounted for
                self._failures.note(error)
        return bool(items)

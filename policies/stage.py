"""What every policy that wraps one backend has in common: all but `send` is what the backend within does."""

from __future__ import annotations

from backends.protocol import Backend, Capabilities, Statistics


class Stage:
    """A policy around `inner`, which is opened and closed with it. A subclass brings `send`."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """The name of the backend within."""
        return self._inner.name

    @property
    def capabilities(self) -> Capabilities:
        """What the backend within can answer."""
        return self._inner.capabilities

    async def open(self) -> None:
        """Open the backend within."""
        await self._inner.open()

    async def aclose(self) -> None:
        """Close the backend within. Safe to call twice."""
        await self._inner.aclose()

    def statistics(self) -> Statistics:
        """The counters of the backend within."""
        return self._inner.statistics()

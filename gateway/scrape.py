"""What /metrics answers: rendered off the event loop, and once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
import gzip
import sys
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, generate_latest

from gateway.settings import shares_metrics

_SWITCH_INTERVAL_S = 0.00005
"""While it renders, the event loop gets the interpreter back so soon: it asks for it several times a call."""
_GZIP_LEVEL = 1


class Scrape:
    """Answers of /metrics. `refresh` brings the registry up to date, on the event loop."""

    def __init__(self, registry: CollectorRegistry, refresh: Callable[[], Awaitable[None]]) -> None:
        self._registry = registry
        self._refresh = refresh
        self._running: dict[bool, asyncio.Task[bytes]] = {}

    async def text(self, *, compressed: bool) -> bytes:
        """All metrics in Prometheus' text format; who asks while that is being made gets the same."""
        task = self._running.get(compressed)
        if task is None:
            task = self._running[compressed] = asyncio.get_running_loop().create_task(self._make(compressed))
            task.add_done_callback(lambda _: self._running.pop(compressed))
        # Shielded: who leaves must not take the answer from the others.
        return await asyncio.shield(task)

    async def _make(self, compressed: bool) -> bytes:
        if compressed:
            return await asyncio.to_thread(gzip.compress, await self.text(compressed=False), _GZIP_LEVEL)
        await self._refresh()
        return await asyncio.to_thread(self._render)

    def _render(self) -> bytes:
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        try:
            return generate_latest(self._readable())
        finally:
            sys.setswitchinterval(usual_s)

    def _readable(self) -> CollectorRegistry:
        if not shares_metrics():
            return self._registry
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # prometheus_client leaves it out
        return registry

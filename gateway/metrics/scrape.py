"""What /metrics answers: rendered beside the calls, and once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
import gc
import sys
import zlib
from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import CollectorRegistry, generate_latest

from backends.clock import Clock
from gateway.metrics.exposition import exposition
from gateway.process.aside import TURN_S
from gateway.process.slices import Slices
from gateway.settings import shares_metrics

_PIECE_BYTES = 64 * 1024
_SWITCH_INTERVAL_S = 0.00005
"""While a thread renders, the event loop gets the interpreter back so soon: it asks for it several times a call."""
_GZIP_LEVEL, _GZIP_WINDOW = 1, 16 + zlib.MAX_WBITS


class Scrape:
    """Answers of /metrics. `refresh` brings the registry up to date."""

    def __init__(self, registry: CollectorRegistry, refresh: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._registry = registry
        self._refresh = refresh
        self._clock = clock
        self._running: dict[bool, asyncio.Task[Sequence[bytes]]] = {}

    async def pieces(self, *, compressed: bool) -> Sequence[bytes]:
        """All metrics in Prometheus' text format; who asks while that is being made gets the same."""
        task = self._running.get(compressed)
        if task is None:
            task = self._running[compressed] = asyncio.get_running_loop().create_task(self._make(compressed))
            task.add_done_callback(lambda _: self._running.pop(compressed))
        # Shielded: who leaves must not take the answer from the others.
        return await asyncio.shield(task)

    async def _make(self, compressed: bool) -> Sequence[bytes]:
        if compressed:
            return await asyncio.to_thread(_compress, await self.pieces(compressed=False))
        await self._refresh()
        return await (asyncio.to_thread(_render_shared) if shares_metrics() else self._render())

    async def _render(self) -> Sequence[bytes]:
        slices = Slices(self._clock)
        pieces: list[bytes] = []
        lines: list[str] = []
        num_chars = 0
        for text in exposition(self._registry):
            lines.append(text)
            num_chars += len(text)
            if num_chars >= _PIECE_BYTES:
                pieces.append("".join(lines).encode())
                lines.clear()
                num_chars = 0
            await slices.give_way()
        return [*pieces, "".join(lines).encode()]


def _render_shared() -> Sequence[bytes]:
    """From the files of all workers; in a thread, for reading and adding them up has nothing to stop in between."""
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # Nothing here is a cycle, and the collector would stop everybody to find that out.
    gc.disable()
    try:
        text = generate_latest(registry)
    finally:
        gc.enable()
        sys.setswitchinterval(TURN_S)
    return [text[start : start + _PIECE_BYTES] for start in range(0, len(text), _PIECE_BYTES)]


def _compress(pieces: Sequence[bytes]) -> Sequence[bytes]:
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WINDOW)
    return [*filter(None, map(compressor.compress, pieces)), compressor.flush()]

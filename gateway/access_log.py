"""One JSON line per request, never a prompt and never a key; written in batches off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import BinaryIO

import msgspec
from prometheus_client import Counter

from backends.protocol import CacheOutcome, Operation, SemanticFacts, Usage
from backends.stream import StreamEnd
from gateway.slo_outcome import SloOutcome

_MAX_LINES = 10_000


class Line(msgspec.Struct, omit_defaults=True):
    """What is said about one request; fields that say nothing are left out.

    `time` is in seconds since the Unix epoch, the others' units are in their names.
    """

    time: float
    request_id: str
    route: str
    operation: Operation
    status: int
    total_ms: float
    model: str = ""
    key: str = ""
    tenant: str = ""
    backend: str | None = None
    upstream_model: str | None = None
    attempts: int = 0
    cache: CacheOutcome | None = None
    fallback: str | None = None
    usage: Usage | None = None
    first_token_ms: float | None = None
    stream_end: StreamEnd | None = None
    error: str | None = None
    upstream_request_id: str | None = None
    semantic: SemanticFacts | None = None
    waited_ms: float | None = None
    slo: SloOutcome | None = None


class AccessLog:
    """Collects lines and writes them in batches; a reader that is too slow costs lines, never requests."""

    def __init__(self, output: BinaryIO, dropped: Counter) -> None:
        self._output = output
        self._dropped = dropped
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._batch: list[bytes] = []
        self._lock = threading.Lock()

    def add(self, line: Line) -> None:
        """Queue one line."""
        if len(self._lines) >= _MAX_LINES:
            self._dropped.inc()
            return
        self._lines.append(self._encode(line))

    async def flush(self) -> None:
        """Write what is queued, off the event loop."""
        if self._lines:
            self._batch, self._lines = self._lines, []
            await asyncio.to_thread(self._write, self._batch)

    def close(self) -> None:
        """Write what is left, a batch included whose `flush` was cancelled before its thread began."""
        self._write(self._batch)
        self._write(self._lines)

    def _write(self, lines: list[bytes]) -> None:
        """Write lines once: who comes second finds the list empty."""
        with self._lock:
            if lines:
                # A closed pipe must not take the gateway down with it.
                with contextlib.suppress(OSError, ValueError):
                    self._output.write(b"\n".join(lines) + b"\n")
                    self._output.flush()
                lines.clear()

"""One line per request, never a prompt and never a key; JSON or for people; written in batches off the event loop."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import BinaryIO

import msgspec
from prometheus_client import Counter

from backends.charges.usage import Usage
from backends.drafts.facts import SpeculationFacts
from backends.operations import Operation
from backends.protocol import CacheOutcome, SemanticFacts
from backends.resume import Resumed
from backends.stream import StreamEnd
from gateway.record.slo_outcome import SloOutcome

_MAX_LINES = 10_000
_MAX_CLOSE_S = 3.0

_logger = logging.getLogger(__name__)


class LogLine(msgspec.Struct, omit_defaults=True):
    """The log line of one request; fields that have their default are left out.

    `time` is in seconds since the Unix epoch; the names of the other fields end in their units.
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
    draft: str | None = None
    waited_ms: float | None = None
    slo: SloOutcome | None = None
    resumed: list[Resumed] | None = None
    speculation: SpeculationFacts | None = None


class AccessLog:
    """Collects lines and writes them in batches. A reader that is too slow loses lines, but never delays a request.

    `output` is unbuffered: what it does not accept is dropped and counted, because a retry could begin in the middle
    of a line. `encode` makes a line's text, without its end.
    """

    def __init__(
        self, output: BinaryIO, dropped: Counter, encode: Callable[[LogLine], bytes] = msgspec.json.encode
    ) -> None:
        self._output = output
        self._dropped = dropped
        self._encode = encode
        self._lines: list[bytes] = []
        self._batches: SimpleQueue[list[bytes] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_broken = False

    def add(self, line: LogLine) -> None:
        """Queue one line."""
        if len(self._lines) >= _MAX_LINES:
            self._dropped.inc()
            return
        self._lines.append(self._encode(line))

    def flush(self) -> None:
        """Write the queued lines off the event loop; while an earlier batch is being written, they stay queued."""
        if not self._lines or not self._batches.empty():
            return
        if self._thread is None:
            # A daemon thread of its own: a reader that has stopped would block a shared pool and the process's exit.
            self._thread = threading.Thread(target=self._write_until_closed, name="access log", daemon=True)
            self._thread.start()
        self._batches.put(self._lines)
        self._lines = []

    def close(self) -> None:
        """Write the remaining lines, as far as the reader accepts them within seconds. Safe to call twice."""
        thread, self._thread = self._thread, None
        lines, self._lines = self._lines, []
        if thread is None:
            self._write(lines)
            return
        self._batches.put(lines)
        self._batches.put(None)
        thread.join(_MAX_CLOSE_S)

    def _write_until_closed(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._write(batch)

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        rest = memoryview(b"\n".join(lines) + b"\n")
        try:
            while rest:
                num_written = self._output.write(rest)
                if not num_written:
                    raise BlockingIOError(errno.EAGAIN, "its reader is too slow, and it does not wait")
                rest = rest[num_written:]
        except (OSError, ValueError) as error:
            # A closed pipe or a full disk must not take the gateway down with it.
            self._dropped.inc(len(lines))
            if not self._is_broken:
                self._is_broken = True
                _logger.error("the access log cannot be written, its lines are dropped: %s", error)
        else:
            self._is_broken = False

"""How far a run has come, on standard error: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

_CELLS = 30
_LINE_EVERY_S = 15.0


class Progress:
    """A bar of `total` steps."""

    def __init__(self, total: int, *, stream: TextIO | None = None) -> None:
        """`stream`: standard error unless given."""
        self._total = max(total, 1)
        self._stream = sys.stderr if stream is None else stream
        self._done = 0
        self._began = time.monotonic()
        self._said = self._began

    def __enter__(self) -> Self:
        """The bar itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the terminal's line empty for what comes next."""
        if self._stream.isatty():
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def step(self, what: str) -> None:
        """One step is about to be taken: `what`."""
        self._done = min(self._done + 1, self._total)
        now = time.monotonic()
        count = f"{self._done}/{self._total}"
        if self._stream.isatty():
            filled = self._done * _CELLS // self._total
            self._stream.write(f"\r\x1b[K[{'#' * filled}{'-' * (_CELLS - filled)}] {count} {what}"[:120])
            self._stream.flush()
        elif self._done == 1 or self._done == self._total or now - self._said >= _LINE_EVERY_S:
            self._said = now
            self._stream.write(f"[{now - self._began:4.0f} s] {count} {what}\n")

"""Hands every error of the log to a function of the operator's own, for Sentry and its like."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from queue import Empty, Full, Queue
from threading import Thread

from backends.errors import ConfigurationError

_logger = logging.getLogger(__name__)
_MAX_WAITING = 100
_MAX_CLOSE_S = 2.0
_TELL_EVERY_S = 60.0

Hook = Callable[[logging.LogRecord], object]


class ErrorHook(logging.Handler):
    """Tells the hook of one record at a time, in a thread of its own: a hook that is slow, or that raises, keeps nobody
    waiting. At most 100 records wait; of those that find no room the next one that does has the number, as `dropped`.
    """

    def __init__(self, hook: Hook) -> None:
        super().__init__(logging.ERROR)
        self._hook = hook
        self._waiting: Queue[logging.LogRecord | None] = Queue(_MAX_WAITING)
        self._num_dropped = 0
        self._told_at = -_TELL_EVERY_S
        self._thread = Thread(target=self._run, name="error hook", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """As of every handler: under its lock."""
        record.dropped = self._num_dropped
        try:
            self._waiting.put_nowait(record)
        except Full:
            self._num_dropped += 1
        else:
            self._num_dropped = 0

    def close(self) -> None:
        """Give the hook a moment for what waits."""
        try:
            self._waiting.put_nowait(None)
        except Full:
            self._discard()
            self._waiting.put_nowait(None)
        self._thread.join(_MAX_CLOSE_S)
        super().close()

    def _run(self) -> None:
        while (record := self._waiting.get()) is not None:
            try:
                self._hook(record)
            except Exception as error:  # a named border: the code is the operator's
                self._tell(error)

    def _tell(self, error: Exception) -> None:
        # As a warning: an error would come back to the hook.
        if time.monotonic() >= self._told_at + _TELL_EVERY_S:
            self._told_at = time.monotonic()
            _logger.warning("the error hook fails: %s: %s", type(error).__name__, error)

    def _discard(self) -> None:
        try:
            while True:
                self._waiting.get_nowait()
        except Empty:
            pass


def error_hook(target: str) -> ErrorHook:
    """Of what `module:function` names. Raises: ConfigurationError."""
    module, _, name = target.partition(":")
    try:
        hook: Hook = getattr(importlib.import_module(module), name)
    except Exception as error:  # a named border: the code is the operator's
        raise ConfigurationError(f'SLIPSTREAM_ERROR_HOOK: "{target}" cannot be imported: {error}') from error
    if not callable(hook):
        raise ConfigurationError(f'SLIPSTREAM_ERROR_HOOK: "{target}" is no function')
    return ErrorHook(hook)

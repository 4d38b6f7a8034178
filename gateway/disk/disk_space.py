"""Reserves space on the disk of batches for answers that are still to come, so that no line is sent upstream whose
answer could not be stored.

The reserve is a file of random bytes (random, so that no file system compresses it). When a write fails for want of
space, the file is deleted and the write is repeated. While the file cannot be created, no further lines are sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from backends.clock import Clock
from backends.errors import StoreUnavailable

_logger = logging.getLogger(__name__)
_BYTES = 16 * 1024**2
_PIECE_BYTES = 1024**2
_TRY_EVERY_S = 1.0


class DiskSpace:
    """Of the one process that drives. `has_room` says whether more may be asked."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / "room"
        self._clock = clock
        self._is_told = False
        self._num_kept = 0
        self.has_room = False

    async def ensure(self) -> bool:
        """Hold the room, if it is not held: whether that is so now. What waits to be written comes first."""
        if self._num_kept:
            return False
        if not self.has_room:
            try:
                await asyncio.to_thread(_lay, self._path)
            except OSError as error:
                if not self._is_told:
                    self._is_told = True
                    _logger.error(
                        "the disk of batches has no room for answers, so none is asked for: %s", error.strerror
                    )
                return False
            if self._is_told:
                self._is_told = False
                _logger.info("the disk of batches has room for answers again")
            self.has_room = True
        return True

    async def keep(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write what was paid for, as often as it takes; until then the caller asks for nothing else.

        Cancelling it loses what is to be written.
        """
        try:
            return await write()
        except StoreUnavailable as error:
            _logger.warning("an answer waits for the disk of batches: %s", error.message)
        self._num_kept += 1
        try:
            await self._give_up_room()
            while True:
                try:
                    return await write()
                except StoreUnavailable:
                    await self._clock.sleep(_TRY_EVERY_S)
        finally:
            self._num_kept -= 1

    async def _give_up_room(self) -> None:
        self.has_room = False
        try:
            await asyncio.to_thread(self._path.unlink, missing_ok=True)
        except OSError as error:
            _logger.warning("the room on the disk of batches cannot be given up: %s", error.strerror)


def _lay(path: Path) -> None:
    """Make the file, whole and on the disk, or leave none. Raises: OSError."""
    try:
        if path.stat().st_size == _BYTES:
            return
    except FileNotFoundError:
        pass
    try:
        with path.open("wb") as file:
            for _ in range(_BYTES // _PIECE_BYTES):
                file.write(os.urandom(_PIECE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise

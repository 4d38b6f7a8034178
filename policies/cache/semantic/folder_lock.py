"""Whose a folder of the semantic cache is: of one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_PRIVATE = 0o600
_NAME = "lock"


class FolderLock:
    """The lock of `folder`, which is made when it is first taken. It ends with its holder.

    It is the process's: what a reload begins anew has the folder while what it replaces still has it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Whether no other process has the folder. Asked again before each write, as another lock of this process may
        have released it.

        Where that cannot be known, because the disk has no locks or takes no file, it is as if nobody had it.
        """
        try:
            if self._descriptor is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, _PRIVATE)
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            # Both may mean that somebody has it; without a file nobody can.
            return self._descriptor is None
        except OSError:
            return True
        return True

    def release(self) -> None:
        """Release it. Safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

"""The journal of one worker: where rows are, in order, before the store has them.

The event loop appends; the writer's thread reads, makes new segments before they are needed, and deletes what is
stored. A lock on the file beside the segments says that the worker lives, and what is in it which ledger they are for.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections import deque
from itertools import count
from pathlib import Path

from gateway.ledger.row import Row
from gateway.ledger.segment import RecordKind, Segment, create_segment

LOCKS = ".lock"
SEGMENTS = ".segment"


class Journal:
    """Open from its making until `close`. Raises: OSError where the folder cannot be used."""

    def __init__(self, folder: Path, max_segments: int, ledger: str = "") -> None:
        """`ledger`: who takes it over if the worker does not live; anybody, if it says nothing."""
        self.ledger = os.fsencode(ledger)
        self.worker = secrets.randbits(63)
        """Unique among all workers there ever were."""
        self._folder = folder
        self._max_segments = max_segments
        self._numbers = count()
        self._lock_path = folder / f"{self.worker:016x}{LOCKS}"
        self._lock = _hold(self._lock_path, self.ledger)
        try:
            self.segments: deque[Segment] = deque([self._create()])
            """From the oldest to the one that is written to."""
            self._spare: Segment | None = None
        except BaseException:
            self._lock_path.unlink()
            os.close(self._lock)
            raise

    def append(self, payload: bytes, kind: RecordKind, n: int, row: Row | None = None) -> bool:
        """Write one record; False where there is no room. `row`: what the payload says, where it is a row. Neither
        waits nor raises.
        """
        if self.segments[-1].append(payload, kind, n, row):
            return True
        spare, self._spare = self._spare, None
        if spare is None:
            return False
        full = self.segments[-1]
        self.segments.append(spare)
        full.is_closed = True
        return spare.append(payload, kind, n, row)

    @property
    def path(self) -> Path:
        """What the names of its files begin with."""
        return self._lock_path.with_suffix("")

    def provide(self) -> None:
        """Have a segment ready for when this one is full, within the bound. Raises: OSError."""
        if self._spare is None and len(self.segments) < self._max_segments:
            self._spare = self._create()

    def carry(self, begun: dict[int, tuple[Segment, bytes]]) -> None:
        """Once the journal is half full, write down anew what began in segments that are read, so that these can go: a
        call that lasts for minutes holds a row, and not all that came after it. Raises: OSError.
        """
        held = [segment for segment in list(self.segments) if segment.is_read and segment.num_open]
        if len(held) < 2 or 2 * len(self.segments) < self._max_segments:
            return
        carried = self._create()
        for n, (segment, payload) in begun.items():
            if segment.is_read:
                if not carried.append(payload, RecordKind.BEGINNING, n):
                    break
                segment.num_open -= 1
                carried.num_open += 1
                begun[n] = (carried, payload)
        carried.is_closed = True
        carried.read_at = carried.end
        self.segments.appendleft(carried)

    def clear(self) -> None:
        """Delete the segments that hold nothing any more. What was read of them is stored. Raises: OSError."""
        for segment in [each for each in list(self.segments) if each.is_read and not each.num_open]:
            segment.delete()
            self.segments.remove(segment)

    def flush(self) -> None:
        """Have all of it on the disk. Raises: OSError."""
        for segment in list(self.segments)[-2:]:
            segment.flush()

    def close(self, *, is_stored: bool) -> None:
        """Let go of it. Its files go too where the store has all of it, else another worker adopts them."""
        if self._spare is not None:
            self._spare.delete()
        for segment in self.segments:
            if is_stored:
                segment.delete()
            else:
                segment.close()
        if is_stored:
            self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)

    def _create(self) -> Segment:
        if not self._lock_path.exists():
            # Somebody has taken the folder away; without its lock nobody would find what is in a new one.
            before, self._lock = self._lock, _hold(self._lock_path, self.ledger)
            os.close(before)
        return create_segment(self._folder / f"{self.worker:016x}-{next(self._numbers):08d}{SEGMENTS}", self.worker)


def _hold(path: Path, content: bytes) -> int:
    """A locked file of that name with that content, and its folder: it has the name only once it has both.

    Raises: OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    handle = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(handle, content)
        new.rename(path)
    except BaseException:
        os.close(handle)
        new.unlink(missing_ok=True)
        raise
    return handle


def hold_dead(lock: Path) -> int | None:
    """The lock of a worker that is gone, held now; None while the worker lives, or another one has been here."""
    try:
        handle = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(lock), os.fstat(handle)):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None

"""A file of the journal, mapped into memory: what is written there outlives the process, however that ends.

It begins with a magic number and the id of the worker. A record is its length, a checksum, its kind, the number of its
call, and a struct in msgpack; zeros follow the last one. A record's head is written after the rest, so that there is no
moment in which half a record looks whole.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import TypeAlias
from zlib import crc32

from gateway.ledger.row import Row
from policies.ledger.settings import SEGMENT_BYTES

_MAGIC = b"SLPLEDG1"
_HEAD = Struct("<8sQ")
_RECORD = Struct("<IIIQ")
_RECORD_BYTES = _RECORD.size
_pack_record = _RECORD.pack_into
_unpack_record = _RECORD.unpack_from

_MOST_END = SEGMENT_BYTES - 4
"""Zeros stay behind the last record."""
_MOST_HANDED = 2000
"""Records of a segment that are in memory too, about 2 KB each: twice as many as come while one batch is stored."""


class RecordKind(IntEnum):
    """What a record is."""

    BEGINNING = 1
    """Of a call: it counts if nothing else of the call comes."""
    CALL = 2
    """The row of a call that is over."""
    PART = 3
    """A further row of a call."""


Record: TypeAlias = tuple[int, bytes, int, int, "Row | None"]
"""Where it ends, its payload, its kind, the number of its call, and its row where that is at hand."""


class Segment:
    """Written by one thread, read by another one, or by another process after the end of the first."""

    __slots__ = ("_handed", "_map", "end", "is_closed", "num_open", "path", "read_at")

    def __init__(self, path: Path, mapped: mmap.mmap, end: int) -> None:
        self.path = path
        self._map = mapped
        self.end = end
        """Up to where it is written, as far as that is known."""
        self.read_at = _HEAD.size
        self.is_closed = False
        """Whether nothing more will be written."""
        self.num_open = 0
        """Beginnings read from it whose calls are not over. The reader counts them."""
        self._handed: dict[int, Record] = {}
        """The newest records, by where they begin, for the reader of this process: it need not look at their bytes."""

    def append(self, payload: bytes, kind: RecordKind, n: int, row: Row | None = None) -> bool:
        """Write one record, if there is room for it. `row`: what the payload says, where it is a row."""
        at, length = self.end, len(payload)
        begin = at + _RECORD_BYTES
        end = begin + length
        if end > _MOST_END:
            return False
        mapped = self._map
        mapped[begin:end] = payload
        _pack_record(mapped, at, length, crc32(payload, (kind ^ n) & 0xFFFFFFFF), kind, n)
        if len(self._handed) < _MOST_HANDED:
            self._handed[at] = (end, payload, kind, n, row)
        self.end = end
        return True

    def read(self) -> Iterator[Record]:
        """Each next record, as far as there are any;
        `read_at` is behind the last one that was taken. Raises: ValueError where what comes next is damaged, and then
        what is behind it is skipped.
        """
        mapped, head_bytes, handed = self._map, _RECORD_BYTES, self._handed
        # Looked at once: the other thread writes meanwhile, and what it adds is for the next time.
        at, limit = self.read_at, self.end
        while at + head_bytes <= limit:
            record = handed.pop(at, None)
            if record is not None:
                self.read_at = at = record[0]
                yield record
                continue
            length, checksum, kind, n = _unpack_record(mapped, at)
            if not length:
                break
            begin = at + head_bytes
            end = begin + length
            payload = mapped[begin:end]
            # The head is as precious as the rest: what it says is where the checksum begins.
            if end > limit or crc32(payload, (kind ^ n) & 0xFFFFFFFF) != checksum:
                self.read_at = limit
                raise ValueError(f"{self.path.name} is damaged at byte {at}")
            self.read_at = at = end
            yield end, payload, kind, n, None
        self.read_at = limit

    @property
    def is_read(self) -> bool:
        """Whether everything that will ever be in it was read."""
        return self.is_closed and self.read_at >= self.end

    def flush(self) -> None:
        """Have it on the disk. Raises: OSError."""
        self._map.flush()

    def close(self) -> None:
        """Let go of the memory; the file stays."""
        self._map.close()

    def delete(self) -> None:
        """Let go of it, and delete the file. Raises: OSError."""
        self.close()
        self.path.unlink(missing_ok=True)


def create_segment(path: Path, worker: int) -> Segment:
    """A new one, its room on the disk taken: a mapped file without it kills who writes to it. Raises: OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, SEGMENT_BYTES)
        else:
            os.write(handle, bytes(SEGMENT_BYTES))
        mapped = mmap.mmap(handle, SEGMENT_BYTES)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(handle)
    mapped[: _HEAD.size] = _HEAD.pack(_MAGIC, worker)
    return Segment(path, mapped, _HEAD.size)


def is_unwritten(path: Path) -> bool:
    """Whether nothing was ever written there: its worker was gone while it was making it. Raises: OSError."""
    return not path.read_bytes().strip(b"\0")


def is_of_another_version(path: Path) -> bool:
    """Whether a gateway that writes segments otherwise has made it. Raises: OSError."""
    with path.open("rb") as file:
        magic = file.read(len(_MAGIC))
    return magic[:-1] == _MAGIC[:-1] and magic != _MAGIC


def open_segment(path: Path) -> tuple[Segment, int]:
    """One that a worker left behind, to be read, and that worker's id. Raises: OSError, ValueError where it is none."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _HEAD.size:
            raise ValueError(f"{path.name} ends before it has begun")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, worker = _HEAD.unpack_from(mapped)
    if magic != _MAGIC:
        mapped.close()
        raise ValueError(f"{path.name} is no journal of this version")
    segment = Segment(path, mapped, size)
    segment.is_closed = True
    return segment, worker

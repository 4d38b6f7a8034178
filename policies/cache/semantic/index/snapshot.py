"""An index on disk: one file of entries that came and went, appended to every few seconds, rewritten when it is stale.

A kill leaves every whole record: what is torn off at the end is the last write. A file that is damaged anywhere else,
or of another encoder, is moved aside whole; nothing is ever deleted but what a rewrite has replaced. Everything here
blocks: it is called from a thread.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from policies.atomic_file import sync_folder
from policies.cache.semantic.index.rows import NUMBER_BYTES, Precision

_LOGGER = logging.getLogger(__name__)
_MAGIC = b"slipstream vectors 1\n"
_FRAME = struct.Struct(">II")
"""Length and checksum of what follows."""
_PREFIX = struct.Struct(">BBB")
"""Kind, length of the group, length of the id."""
_ADDED, _REMOVED = 1, 2
_MAX_NAME_BYTES = 255
_PRIVATE = 0o600


class Header(msgspec.Struct, frozen=True):
    """What all vectors of a file have in common; `span` as in `Codec`."""

    fingerprint: str
    dimension: int
    precision: str
    span: float


class Record(msgspec.Struct, frozen=True):
    """An entry that came, with its code; or that went: None."""

    group: bytes
    id: str
    code: bytes | None


class SnapshotInUse(OSError):
    """Another process has it."""


def pack_record(record: Record) -> bytes:
    """A record as it is written. Raises: ValueError where group or id are over 255 bytes."""
    name = record.id.encode()
    if len(record.group) > _MAX_NAME_BYTES or len(name) > _MAX_NAME_BYTES:
        raise ValueError(f"a group of {len(record.group)} or an id of {len(name)} bytes, {_MAX_NAME_BYTES} are allowed")
    kind = _REMOVED if record.code is None else _ADDED
    return _frame(_PREFIX.pack(kind, len(record.group), len(name)) + record.group + name + (record.code or b""))


class Snapshot:
    """The file at `path`, and the lock beside it. One thread at a time."""

    def __init__(self, path: Path, *, fingerprint: str, dimension: int, precision: Precision) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._dimension = dimension
        self._precision = precision
        self._code_bytes = dimension * NUMBER_BYTES[precision]
        self._max_frame_bytes = _PREFIX.size + 2 * _MAX_NAME_BYTES + self._code_bytes
        self._lock: int | None = None
        self._file: BinaryIO | None = None
        self._end = 0
        self.num_records = 0

    def open(self) -> Header | None:
        """Check the whole file; None where there is none to go on with. `records` then reads it.

        Raises: SnapshotInUse; OSError where the folder cannot be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self._path.with_name(self._path.name + ".lock"))
        if not self._path.exists():
            return None
        with self._path.open("rb") as file:
            header, problem, end = self._check(file)
        if problem is not None or header is None:
            self._set_aside(problem or "it has no header")
            return None
        num_torn = self._path.stat().st_size - end
        if num_torn:
            os.truncate(self._path, end)
            _LOGGER.warning("the last write to %s was cut short: its last %d bytes are dropped", self._path, num_torn)
        self._file = self._path.open("ab")
        self._end = end
        return header

    def open_to_read(self) -> Header | None:
        """As `open` where the folder cannot be written: nothing is locked, mended or put aside. Raises: OSError."""
        if not self._path.exists():
            return None
        with self._path.open("rb") as file:
            header, problem, _ = self._check(file)
        if problem is not None:
            _LOGGER.error("the snapshot %s cannot be used: %s", self._path, problem)
            return None
        return header

    def records(self) -> Iterator[Record]:
        """Everything that was found by `open`, in the order in which it happened."""
        with self._path.open("rb") as file:
            _read_header(file)
            while (payload := _read_frame(file, self._max_frame_bytes)) is not None:
                yield _unpack(payload)

    def append(self, span: float, records: Sequence[bytes]) -> None:
        """Write packed records and wait until they are on disk. Raises: OSError; the file is then as before."""
        if self._file is None:
            self._file = self._open_again() if self._end else self._create(self._path, span)
            self._end = self._path.stat().st_size
        content = b"".join(records)
        try:
            self._file.write(content)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            # Half a record in the middle would make a damaged file of it.
            self._abandon()
            raise
        self._end += len(content)
        self.num_records += len(records)

    def rewrite(self, span: float, keeps: Callable[[bytes, str], bool]) -> None:
        """Replace the file by one with those entries only that `keeps` says are still there; all or nothing.

        `keeps` is asked from this thread. Raises: OSError, and the old file stays.
        """
        if self._file is None:
            return
        unfinished = self._path.with_name(self._path.name + ".new")
        num_records = 0
        try:
            with self._create(unfinished, span) as file:
                for record in self.records():
                    if record.code is not None and keeps(record.group, record.id):
                        file.write(pack_record(record))
                        num_records += 1
                file.flush()
                os.fsync(file.fileno())
                end = file.tell()
            unfinished.replace(self._path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            raise
        self.num_records = num_records
        self._end = end
        self._file.close()
        self._file = None
        self._file = self._open_again()
        sync_folder(self._path.parent)

    def close(self) -> None:
        """Release file and lock. Safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check(self, file: BinaryIO) -> tuple[Header | None, str | None, int]:
        """The header, what is wrong, and where the last whole record ends."""
        end = 0
        try:
            header = _read_header(file)
            found, wanted = (header.fingerprint, header.precision), (self._fingerprint, self._precision)
            if found != wanted or header.dimension != self._dimension:
                return header, f"it is of the encoder {found} and not of {wanted}", 0
            end = file.tell()
            while (payload := _read_frame(file, self._max_frame_bytes)) is not None:
                record = _unpack(payload)
                if record.code is not None and len(record.code) != self._code_bytes:
                    return header, f"a vector at byte {end} has {len(record.code)} bytes", end
                self.num_records += 1
                end = file.tell()
        except (ValueError, msgspec.DecodeError) as error:
            return None, f"it is damaged at byte {end} ({error})", end
        return header, None, end

    def _set_aside(self, problem: str) -> None:
        number = 1
        while (aside := self._path.with_name(f"{self._path.name}.aside-{number}")).exists():
            number += 1
        self._path.rename(aside)
        self.num_records = 0
        _LOGGER.error("the snapshot %s cannot be used: %s; it is kept as %s", self._path, problem, aside.name)

    def _create(self, path: Path, span: float) -> BinaryIO:
        """A new file with its header, in place once that is on disk."""
        header = msgspec.msgpack.encode(Header(self._fingerprint, self._dimension, self._precision, span))
        unfinished = path.with_name(path.name + ".made")
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE), "wb") as file:
            file.write(_MAGIC + _frame(header))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_folder(path.parent)
        return path.open("ab")

    def _abandon(self) -> None:
        file, self._file = self._file, None
        assert file is not None, "a file was written to"
        with suppress(OSError):
            # Closing would try to write the rest of it again.
            file.close()
        self._file = self._open_again()

    def _open_again(self) -> BinaryIO:
        """The file that is there, less what was not written whole. Raises: OSError, and it is tried once more later."""
        os.truncate(self._path, self._end)
        return self._path.open("ab")


def _frame(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _read_frame(file: BinaryIO, max_bytes: int) -> bytes | None:
    """The next one; None at the end of the file, which may lie within a frame. Raises: ValueError where it is none."""
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    num_bytes, checksum = _FRAME.unpack(head)
    if num_bytes > max_bytes:
        raise ValueError(f"a record of {num_bytes} bytes")
    payload = file.read(num_bytes)
    if len(payload) < num_bytes:
        return None
    if zlib.crc32(payload) != checksum:
        raise ValueError("a wrong checksum")
    return payload


def _read_header(file: BinaryIO) -> Header:
    magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic!r}")
    payload = _read_frame(file, 4096)
    if payload is None:
        raise ValueError("its header is cut off")
    return msgspec.msgpack.decode(payload, type=Header)


def _unpack(payload: bytes) -> Record:
    """Raises: ValueError where the payload is none."""
    if len(payload) < _PREFIX.size:
        raise ValueError("a record without a head")
    kind, num_group, num_id = _PREFIX.unpack_from(payload)
    id_at = _PREFIX.size + num_group
    code_at = id_at + num_id
    if kind not in (_ADDED, _REMOVED) or code_at > len(payload):
        raise ValueError(f"a record of kind {kind}")
    code = payload[code_at:] if kind == _ADDED else None
    return Record(payload[_PREFIX.size : id_at], payload[id_at:code_at].decode(), code)


def _lock(path: Path) -> int:
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise SnapshotInUse(f"the snapshot behind {path} is used by another process") from None
    return descriptor

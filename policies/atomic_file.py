"""Files that are there whole or not at all: what a kill in the middle of a write leaves is the file before it."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

_LENGTH_BYTES = 8
_CHECKSUM_BYTES = 4
_PRIVATE = 0o600


class DamagedFile(ValueError):
    """A file that is not what was written: torn, of another version, or somebody else's."""


def write_atomically(path: Path, content: bytes | memoryview, magic: bytes) -> None:
    """Replace the file by `magic`, length, checksum and content, for its owner's eyes. Blocks until it is on disk.

    A path has one writer at a time. Folders that are missing are made. Raises: OSError, and the old file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, magic + _header(content), content)


def replace_file(path: Path, *pieces: bytes | memoryview, writer: str = "") -> None:
    """Replace the file by these bytes, for its owner's eyes. Blocks until it is on disk.

    Processes that may write a path at the same time each give a `writer` of their own; the last one wins.
    Raises: OSError, and the old file stays.
    """
    # A fixed name: what a kill leaves is overwritten by the next writer, so leavings never pile up.
    unfinished = path.with_name(f"{path.name}{writer}.new")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE), "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_folder(path.parent)


def read_checked(path: Path, magic: bytes) -> bytes | None:
    """The content that was written with this `magic`; None where there is no file.

    Raises: DamagedFile, naming the path and what is wrong with it; OSError where it cannot be read.
    """
    try:
        with path.open("rb") as file:
            found = file.read(len(magic))
            if found != magic:
                raise DamagedFile(f"{path} begins with {found[:32]!r} instead of {magic!r}: of another version")
            header = file.read(_LENGTH_BYTES + _CHECKSUM_BYTES)
            content = file.read()
    except FileNotFoundError:
        return None
    if header != _header(content):
        raise DamagedFile(f"{path} is damaged: its length or checksum is not that of its {len(content)} bytes")
    return content


def _header(content: bytes | memoryview) -> bytes:
    num_bytes = content.nbytes if isinstance(content, memoryview) else len(content)
    return num_bytes.to_bytes(_LENGTH_BYTES, "big") + zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "big")


def sync_folder(folder: Path) -> None:
    """Have a rename in it kept over a power cut, which it is only once the folder itself is on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

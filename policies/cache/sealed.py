"""Seals bytes that are stored outside this process, so that damage or a foreign value is detected on their return."""

from __future__ import annotations

import zlib

_CHECKSUM_BYTES = 4


def seal(magic: bytes, key: bytes, content: bytes) -> bytes:
    """The content with a version and a checksum in front; `unseal` accepts it under the same key only."""
    return magic + _checksum(key, content) + content


def unseal(magic: bytes, key: bytes, value: bytes) -> bytes | None:
    """The content; None if the bytes are of another version, damaged, or were sealed under another key."""
    start = len(magic) + _CHECKSUM_BYTES
    content = value[start:]
    if not value.startswith(magic) or value[len(magic) : start] != _checksum(key, content):
        return None
    return content


def _checksum(key: bytes, content: bytes) -> bytes:
    # The checksum is seeded with the key, so that a value that was copied to another key is detected.
    return zlib.crc32(content, zlib.crc32(key)).to_bytes(_CHECKSUM_BYTES, "big")

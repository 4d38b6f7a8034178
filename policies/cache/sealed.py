"""Bytes that are kept outside this process, with what shows on their return that they are ours and whole."""

from __future__ import annotations

import zlib

_CHECKSUM_BYTES = 4


def seal(magic: bytes, key: bytes, content: bytes) -> bytes:
    """The content behind its version and a checksum: bytes that `unseal` takes back under the same key only."""
    return magic + _checksum(key, content) + content


def unseal(magic: bytes, key: bytes, value: bytes) -> bytes | None:
    """The content, or None where these bytes are of another version, damaged, or were sealed under another key."""
    start = len(magic) + _CHECKSUM_BYTES
    content = value[start:]
    if not value.startswith(magic) or value[len(magic) : start] != _checksum(key, content):
        return None
    return content


def _checksum(key: bytes, content: bytes) -> bytes:
    # Seeded with the key: a value that was copied to another key does not answer there.
    return zlib.crc32(content, zlib.crc32(key)).to_bytes(_CHECKSUM_BYTES, "big")

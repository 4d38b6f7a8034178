"""A stored answer, and how it is written down for stores outside this process."""

from __future__ import annotations

import zlib
from enum import StrEnum

import msgspec

from backends.protocol import Usage

_MAGIC = b"slipstream answer 1\n"
_CHECKSUM_BYTES = 4


class Form(StrEnum):
    """In which form an answer is kept: one JSON document, or the events of a stream."""

    JSON = "json"
    SSE = "sse"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An answer as the upstream sent it.

    `created` is in seconds since the Unix epoch. `usage_event` is where in an SSE body the event lies that holds the
    usage and nothing else; `shows_usage` says whether any event of it holds the usage.
    """

    form: Form
    body: bytes
    content_type: bytes
    created: float
    usage: Usage | None = None
    usage_event: tuple[int, int] | None = None
    shows_usage: bool = False


_DECODER = msgspec.msgpack.Decoder(Entry)


def pack_entry(key: bytes, entry: Entry) -> bytes:
    """The entry as bytes that `unpack_entry` takes back under the same key only."""
    content = msgspec.msgpack.encode(entry)
    return _MAGIC + _checksum(key, content) + content


def unpack_entry(key: bytes, value: bytes) -> Entry | None:
    """The entry, or None where these bytes are of another version, damaged, or were stored under another key."""
    start = len(_MAGIC) + _CHECKSUM_BYTES
    content = value[start:]
    if not value.startswith(_MAGIC) or value[len(_MAGIC) : start] != _checksum(key, content):
        return None
    try:
        return _DECODER.decode(content)
    except msgspec.MsgspecError:
        return None


def _checksum(key: bytes, content: bytes) -> bytes:
    # Seeded with the key: a value that was copied to another key does not answer there.
    return zlib.crc32(content, zlib.crc32(key)).to_bytes(_CHECKSUM_BYTES, "big")

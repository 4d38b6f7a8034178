"""A stored answer, and its serialization for stores outside this process."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from backends.charges.usage import Usage
from backends.protocol import Headers
from backends.recorded_pace import RecordedPace
from policies.cache.sealed import seal, unseal
from policies.speculation.outcome import STAGE_HEADER

_MAGIC = b"slipstream answer 1\n"


class AnswerForm(StrEnum):
    """The form in which an answer is stored: one JSON document, or the events of a stream."""

    JSON = "json"
    SSE = "sse"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An answer as the upstream sent it.

    `created` is in seconds since the Unix epoch. `usage_event` is where in an SSE body the event lies that holds the
    usage and nothing else; `shows_usage` says whether any event of it holds the usage. `tempo` is when it came, on
    routes that hide what was stored. `stage` says who has answered, where that may be a smaller backend.
    """

    form: AnswerForm
    body: bytes
    content_type: bytes
    created: float
    usage: Usage | None = None
    usage_event: tuple[int, int] | None = None
    shows_usage: bool = False
    tempo: RecordedPace | None = None
    stage: bytes = b""

    @property
    def marks(self) -> Headers:
        """The header fields that go with the answer whoever gets it."""
        return [(STAGE_HEADER, self.stage)] if self.stage else []


_DECODER = msgspec.msgpack.Decoder(Entry)


def pack_entry(key: bytes, entry: Entry) -> bytes:
    """The entry as bytes that `unpack_entry` takes back under the same key only."""
    return seal(_MAGIC, key, msgspec.msgpack.encode(entry))


def unpack_entry(key: bytes, value: bytes) -> Entry | None:
    """The entry; None if the bytes are of another version, damaged, or were stored under another key."""
    content = unseal(_MAGIC, key, value)
    if content is None:
        return None
    try:
        return _DECODER.decode(content)
    except msgspec.MsgspecError:
        return None

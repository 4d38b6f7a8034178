"""An uploaded file: multipart/form-data, taken as it comes and written to disk, never whole in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Receive

from backends.errors import BodyTooLarge, ClientGone, InvalidRequest
from gateway.batches.file_store import append
from gateway.http.incoming import Incoming, Pace

_WRITE_BYTES = 1024**2
_MAX_FIELD_BYTES = 4096
_MAX_FIELDS = 20
_MAX_OVERHEAD_BYTES = 64 * 1024
"""What may stand around the file: boundaries, heads, other fields."""
_MAX_NAME_CHARS = 255


class Upload(msgspec.Struct):
    """What came: the fields, and the file's name; its bytes are in the part that was given."""

    fields: dict[str, str]
    filename: str


class _Form:
    """The parser's callbacks: one part after the other."""

    def __init__(self) -> None:
        self.fields: dict[str, bytearray] = {}
        self.filename: str | None = None
        self.content = bytearray()
        self.is_over = False
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""
        self._target: bytearray | None = None

    def on_part_begin(self) -> None:
        self._disposition = b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name == "file":
            if self.filename is not None:
                raise InvalidRequest("there are two files; upload one at a time", param="file")
            self.filename = options.get(b"filename", b"file").decode("utf-8", "replace")[:_MAX_NAME_CHARS]
            self._target = self.content
            return
        if len(self.fields) >= _MAX_FIELDS:
            raise InvalidRequest("the form has too many fields")
        self._target = self.fields.setdefault(name, bytearray())

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        assert self._target is not None, "a part has a head"
        self._target += data[start:end]
        if self._target is not self.content and len(self._target) > _MAX_FIELD_BYTES:
            raise InvalidRequest(f"a field of the form has more than {_MAX_FIELD_BYTES} bytes")

    def on_end(self) -> None:
        self.is_over = True


async def receive_upload(receive: Receive, incoming: Incoming, part: Path, max_bytes: int, pace: Pace) -> Upload:
    """Write the form's file to `part` and tell the rest. The part is the caller's, also where this fails.

    Raises: InvalidRequest, BodyTooLarge, BodyTooSlow, ClientGone.
    """
    kind, options = parse_options_header(incoming.content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 70:
        raise InvalidRequest("a file is uploaded as multipart/form-data with a boundary")
    limit = max_bytes + _MAX_OVERHEAD_BYTES
    if incoming.content_length > limit:
        raise BodyTooLarge(f"the file has about {incoming.content_length} bytes; at most {max_bytes} are taken")
    form = _Form()
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": form.on_part_begin,
            "on_part_data": form.on_part_data,
            "on_header_field": form.on_header_field,
            "on_header_value": form.on_header_value,
            "on_header_end": form.on_header_end,
            "on_headers_finished": form.on_headers_finished,
            "on_end": form.on_end,
        },
    )
    num_bytes = num_written = 0
    more = True
    try:
        while more:
            message = await pace.next(receive, num_bytes)
            if message["type"] == "http.disconnect":
                raise ClientGone("the client left before its file was whole")
            piece = message.get("body", b"")
            more = message.get("more_body", False)
            num_bytes += len(piece)
            if num_bytes > limit:
                raise BodyTooLarge(f"at most {max_bytes} bytes are taken")
            parser.write(piece)
            if len(form.content) >= _WRITE_BYTES or not more:
                num_written += len(form.content)
                await asyncio.to_thread(append, part, bytes(form.content))
                form.content.clear()
    except FormParserError as error:
        raise InvalidRequest(f"the form cannot be read: {error}") from error
    if not form.is_over or form.filename is None:
        raise InvalidRequest("the form has no whole `file`", param="file")
    if num_written > max_bytes:
        raise BodyTooLarge(f"at most {max_bytes} bytes are taken")
    return Upload({name: value.decode("utf-8", "replace") for name, value in form.fields.items()}, form.filename)

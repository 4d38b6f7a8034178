"""Reads a log of questions and the answers they were given: JSON lines, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from backends.json_errors import NOT_JSON

_GZIP = b"\x1f\x8b"
_LAST_SECOND = 1e11
"""Later than any time in seconds: such a number counts something else, as milliseconds."""


class BadLogLine(Exception):
    """A line that is no exchange. The message names the line, the field and what is wrong with it."""


class LoggedExchange(msgspec.Struct, frozen=True):
    """A chat completion's body and what it was answered. `created`: seconds since the epoch, where the answer says so.

    `tenant` and `key` are whose call it was, "" where the log does not say.
    """

    request: dict[str, Any]
    response: dict[str, Any]
    tenant: str = ""
    key: str = ""

    @property
    def created(self) -> float | None:
        """When it was answered."""
        created = self.response.get("created")
        is_time = isinstance(created, int | float) and 0 < created < _LAST_SECOND
        return float(created) if is_time and created is not None else None


class _Request(msgspec.Struct):
    messages: list[dict[str, Any]]
    model: str = ""
    temperature: float | None = None


class _Choice(msgspec.Struct):
    message: dict[str, Any]


class _Response(msgspec.Struct):
    choices: list[_Choice]


class _Line(msgspec.Struct):
    """What has to hold for a line to be replayed."""

    request: _Request
    response: _Response


_CHECK = msgspec.json.Decoder(_Line).decode
_DECODE = msgspec.json.Decoder(LoggedExchange).decode


def read_log(path: Path) -> Iterator[LoggedExchange | BadLogLine]:
    """Each line's exchange, or why it has none; blank lines are nothing.

    Raises: BadLogLine where the file itself cannot be read on: what is compressed is damaged.
    """
    number = 0
    with ExitStack() as files:
        file: IO[bytes] = files.enter_context(path.open("rb"))
        is_gzip = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if is_gzip:
            file = cast("IO[bytes]", files.enter_context(gzip.open(file)))
        try:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    yield _exchange(number, line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadLogLine(f"{path}, after line {number}: the gzip file is damaged or cut off ({error})") from error


def _exchange(number: int, line: bytes) -> LoggedExchange | BadLogLine:
    try:
        _CHECK(line)
        return _DECODE(line)
    except NOT_JSON as error:
        return BadLogLine(f"line {number}: {error}")

"""What Redis sends, as values: its protocol in the second version, of which only little is used here.

Written here because a compiled parser would be a dependency for one microsecond a call: scripts reply with one packed
string, of which only the length is read here.
"""

from __future__ import annotations

from typing import TypeAlias

Reply: TypeAlias = "int | bytes | ReplyError | ConnectionError | list[Reply] | None"
"""What Redis replied; a `ReplyError` that it replied; a ConnectionError where no reply will come."""

_MOST_BYTES = 64 * 1024**2
_MOST_LINE_BYTES = 64 * 1024
_STRING, _ERROR, _INTEGER, _BULK, _ARRAY = b"+-:$*"


class ReplyError(Exception):
    """An error that Redis has replied: its first word is its kind."""


class NotRedisError(Exception):
    """The peer does not speak the language of Redis."""


class Replies:
    """Of one connection, in whatever pieces they come."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> list[Reply]:
        """Those that are whole with these bytes. Raises: NotRedisError, after which nothing more can be read."""
        if self._rest:
            data = self._rest + data
        replies: list[Reply] = []
        position = 0
        try:
            while position < len(data):
                found = _read(data, position)
                if found is None:
                    break
                reply, position = found
                replies.append(reply)
        except (ValueError, RecursionError) as error:
            raise NotRedisError from error
        self._rest = data[position:]
        return replies


def _read(data: bytes, position: int) -> tuple[Reply, int] | None:
    """The reply that begins there, and where the next one does; None where it is not whole. Raises: ValueError."""
    end = data.find(b"\r\n", position)
    if end < 0:
        if len(data) - position > _MOST_LINE_BYTES:
            raise ValueError("a line without an end")
        return None
    kind = data[position]
    line = data[position + 1 : end]
    position = end + 2
    if kind == _BULK:
        length = int(line)
        if length < 0:
            return None, position
        if length > _MOST_BYTES:
            raise ValueError("longer than anything that was asked for")
        end = position + length
        return (data[position:end], end + 2) if len(data) >= end + 2 else None
    if kind == _INTEGER:
        return int(line), position
    if kind == _STRING:
        return line, position
    if kind == _ERROR:
        return ReplyError(line.decode("utf-8", "replace")), position
    if kind != _ARRAY:
        raise ValueError("no kind of reply")
    items: list[Reply] = []
    for _ in range(int(line)):
        found = _read(data, position)
        if found is None:
            return None
        item, position = found
        items.append(item)
    return items, position

"""Changes one field of a JSON object, or of a form, without touching any other byte of it.

The body has been decoded once before (strictly: no duplicate keys), so these only need to find places.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

# A string, or a bracket. Unrolled so that long strings cost one step per escape and not per character.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]')


def set_field(raw: bytes, body: Mapping[str, Any], name: str, value: Any) -> bytes:
    """The same object with that top-level field set, its other bytes as they were.

    `body` is `raw` decoded. A new field goes first.
    """
    encoded = msgspec.json.encode(value)
    if name in body:
        start, stop = _find_value(raw, name)
        return raw[:start] + encoded + raw[stop:]
    begin = raw.index(b"{") + 1
    separator = b"," if body else b""
    return raw[:begin] + msgspec.json.encode(name) + b":" + encoded + separator + raw[begin:]


def without_field(body: Mapping[str, Any], name: str) -> tuple[bytes, Mapping[str, Any]]:
    """An object without that field, written anew; and it decoded."""
    kept = {key: value for key, value in body.items() if key != name}
    return msgspec.json.encode(kept), kept


def with_model(raw: bytes, at: tuple[int, int], model: str) -> bytes:
    """A form that names this model in the place of the one that it names there; the same bytes where it is that."""
    begin, end = at
    name = model.encode("utf-8")
    if raw[begin:end] == name:
        return raw
    view = memoryview(raw)
    return b"".join((view[:begin], name, view[end:]))


def ask_for_usage(raw: bytes, body: Mapping[str, Any]) -> bytes:
    """A streamed call that also asks for the usage chunk."""
    return set_field(raw, body, "stream_options", {**(body.get("stream_options") or {}), "include_usage": True})


def _find_value(raw: bytes, name: str) -> tuple[int, int]:
    """Where the value of a top-level field begins and ends."""
    depth = 0
    expects_key = False
    found_at = -1
    for match in _TOKEN.finditer(raw):
        token = match[0]
        if token == b"{" or token == b"[":
            depth += 1
            expects_key = depth == 1
        elif depth == 1 and token in (b",", b"}"):
            if found_at >= 0:
                value = raw[found_at : match.start()]
                lead = len(value) - len(value.lstrip())
                return found_at + lead, found_at + len(value.rstrip())
            expects_key = True
        elif depth == 1 and expects_key and token[:1] == b'"':
            expects_key = False
            if msgspec.json.decode(token) == name:
                found_at = raw.index(b":", match.end()) + 1
        if token == b"}" or token == b"]":
            depth -= 1
    raise AssertionError(f"the field {name!r} was decoded from these bytes")

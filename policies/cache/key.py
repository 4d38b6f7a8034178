"""The identity of a call in the exact cache: who may share an answer, and which calls are the same call.

A key is the SHA-256 of a MessagePack array: every part carries its type and length, so no two different lists of parts
have one in common. Whatever may change the answer is in it, fields that nobody knows yet included: the whole body goes
in but for how the answer travels.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import msgspec

from backends.header_names import HeaderNames
from backends.protocol import Call
from policies.cache.settings import CacheScope

_FORMAT_VERSION = 4
_ENCODE = msgspec.msgpack.Encoder(order="deterministic").encode
_ENCODE_IN_ORDER = msgspec.msgpack.Encoder().encode
_TRAVEL = frozenset({"stream", "stream_options"})
_CONVERTED = frozenset({"include_usage"})
"""What may be asked of a stream that a stored answer can do without, or be given."""
_MOST_SORTED = 1000
"""Of a body's fields. The order of more, which no honest body has, counts: to sort a million holds others up."""

SUB_SCOPE_HEADER = b"x-cache-scope"
"""A client's field that divides its tenant's cache. It is added to the identity, so it can only narrow the sharing."""


def identity_of(call: Call, scope: CacheScope) -> str | None:
    """The identity of those who share the answer to this call; None if the call has none and must not be cached.

    A user and a key are always inside their tenant, so equal names of two tenants never meet.
    """
    if scope == "tenant":
        member = ""
    elif scope == "key":
        member = call.key_id
    elif scope == "user":
        if not call.user:
            return None
        member = call.user
    else:
        return "global"
    return f"{scope}:{len(call.tenant)}:{call.tenant}:{member}"


def cache_key(call: Call, identity: str, route: str, epoch: str, read: HeaderNames) -> bytes:
    """The 32-byte key of a call with a decoded body on that route, whose backends read these headers.

    White space does not matter, nor does the order of keys in the prompt, nor that of the body's fields. Within these
    it does, and in tools that the prompt brings: a model fills in a schema's properties as they stand there. 1, 1.0 and
    true are three values.
    """
    body = call.body or {}
    prompt = call.operation.traits.prompt
    parts = (
        _FORMAT_VERSION,
        call.operation,
        identity,
        route,
        epoch,
        call.method,
        call.path,
        call.query,
        significant_headers(call, read),
        # Chat and completion answers can be converted between both forms; other operations have an entry for each.
        call.stream and not call.operation.traits.has_choices,
        [body[prompt], *_tools_in(body[prompt])] if prompt in body else [],
        fields_in_order(body, travel_fields(call) | {prompt}),
    )
    return digest_of(parts)


def significant_headers(call: Call, read: HeaderNames) -> list[tuple[bytes, bytes]]:
    """The header fields that belong to the identity of a call: those that its backends read, and the cache scope."""
    narrowed = [field for field in call.headers if field[0] == SUB_SCOPE_HEADER]
    return [*narrowed, *read.taken(call.headers)]


def travel_fields(call: Call) -> frozenset[str]:
    """The fields that only say how an answer travels, in a form into which a stored one can be converted."""
    options = (call.body or {}).get("stream_options")
    is_converted = not call.stream or not isinstance(options, Mapping) or options.keys() <= _CONVERTED
    return _TRAVEL if is_converted else _TRAVEL - {"stream_options"}


def _tools_in(prompt: object) -> list[bytes]:
    """The items of a prompt that bring tools, as a search for tools does."""
    items = prompt if isinstance(prompt, list) else []
    return [fields_in_order(item, ()) for item in items if isinstance(item, dict) and "tools" in item]


def fields_in_order(body: Mapping[str, Any], without: Collection[str | None]) -> bytes:
    """The other fields of a body: their own order does not matter, but that of everything within them does."""
    names = sorted(body) if len(body) <= _MOST_SORTED else body
    fields = {name: body[name] for name in names if name not in without}
    try:
        return _ENCODE_IN_ORDER(fields)
    except OverflowError:
        return _with_huge_numbers(fields)


def digest_of(parts: tuple[object, ...]) -> bytes:
    """A 32-byte digest of a list of JSON values, texts and bytes; at a position with texts there must not be bytes."""
    try:
        encoded = _ENCODE(parts)
    except OverflowError:
        encoded = _with_huge_numbers([part.value if isinstance(part, Enum) else part for part in parts])
    return hashlib.sha256(encoded).digest()


def _with_huge_numbers(value: Any) -> bytes:
    """The same for what has integers beyond 64 bits, which MessagePack has no room for; none of its arrays begins so.

    As decimals they would take time by the square of their length. In the form of 2 nothing depends on what is shared;
    unlike elsewhere the order of keys in the prompt counts.
    """
    return marshal.dumps(value, 2)

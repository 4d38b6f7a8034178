"""What of a call matters to balancing: how long its prompt is, which blocks it begins with, whose session it is.

Without the backends' tokenizers a token is taken for four bytes of the prompt's JSON.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from backends.operations import BY_PATH
from backends.protocol import Call

BYTES_PER_TOKEN = 4
SESSION_HEADER = b"x-session-id"
_ENDS = tuple(accumulate((1024, *(2048,) * 32, *(4096,) * 112)))
"""Where a prompt's blocks end, in bytes. The first is short, for many prompts share a short beginning; 513 KiB are
145 blocks."""
ENDS_TOKENS = tuple(end // BYTES_PER_TOKEN for end in _ENDS)
_BOUNDS = tuple(pairwise((0, *_ENDS)))
_MAX_ENCODED_BYTES = 1024**2
_KEY_BYTES = 4 * 256
_KEPT_FROM_TOKENS = 1024
"""Providers keep no shorter beginnings of prompts (the documentation of both OpenAI and Anthropic)."""
_MARKERS = {operation.traits.prompt: f'"{operation.traits.prompt}"'.encode() for operation in BY_PATH.values()}
"""How the fields that models read are written."""
_encode = msgspec.json.Encoder().encode


class Demand(msgspec.Struct, frozen=True, gc=False):
    """A call as balancing sees it. `ends[n]` are the tokens up to the end of block n."""

    tokens: int
    is_stream: bool
    """Whether its first token will be seen."""
    blocks: Sequence[int] = ()
    ends: Sequence[int] = ()
    key: bytes = b""
    """What calls with the same beginning have in common, the same in every process."""
    session: bytes = b""


def read_demand(call: Call, *, wants_blocks: bool = False, written: tuple[bytes, Hashable] | None = None) -> Demand:
    """What a call asks for. Blocks, salted with the tenant, only where they are wanted: they cost most of it.

    `written`: the prompt and what its blocks begin with, in the words of the engines that are asked.
    """
    text, salt = (prompt_text(call), (call.tenant, call.model)) if written is None else written
    return Demand(
        len(text) // BYTES_PER_TOKEN or 1,
        call.stream and call.operation.traits.writes_text,
        hash_blocks(text, salt) if wants_blocks else (),
        ENDS_TOKENS,
        text[:_KEY_BYTES],
        dict(call.headers).get(SESSION_HEADER) or call.user.encode("utf-8", "surrogatepass"),
    )


def prompt_text(call: Call) -> bytes:
    """The part of a call that a model reads, as bytes that grow at their end as a conversation does.

    As the client has written it where that is all in one place, and so with what it says after it.
    """
    body, raw, traits = call.body, call.raw, call.operation.traits
    field = traits.prompt
    if body is None or not field:
        return raw
    for each in traits.before_prompt:
        if each in body and len(raw) <= _MAX_ENCODED_BYTES:
            return _written_out(body, (*traits.before_prompt, field)) or raw
    begin = raw.find(_MARKERS[field])
    return raw[begin:] if begin > 0 else raw


def _written_out(body: Mapping[str, Any], fields: Sequence[str]) -> bytes:
    """Fields in that order; empty for JSON that came in but cannot go out: half a surrogate pair, a number beyond 64
    bits."""
    try:
        return b"".join([_encode(body[field]) for field in fields if field in body])
    except (msgspec.EncodeError, ValueError, OverflowError, RecursionError):
        return b""


def prompt_cache_key(call: Call, demand: Demand | None = None) -> str:
    """A hash of the tenant and the first 256 tokens, which tells a provider which prompts begin alike and nothing else.

    Empty where a provider would keep nothing: no prompt, or one of fewer than 1,024 tokens. `demand` is what has been
    read of the call.
    """
    if call.body is None or not call.operation.traits.writes_text:
        return ""
    demand = demand or read_demand(call)
    if demand.tokens < _KEPT_FROM_TOKENS:
        return ""
    tenant = blake2b(call.tenant.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return blake2b(tenant + demand.key, digest_size=16).hexdigest()


def hash_blocks(text: bytes, salt: Hashable) -> list[int]:
    """Chained hashes of the whole blocks of `text`. They mean something in this process only."""
    last = hash(salt)
    blocks = []
    for begin, end in _BOUNDS[: bisect_right(_ENDS, len(text))]:
        last = hash((last, text[begin:end]))
        blocks.append(last)
    return blocks

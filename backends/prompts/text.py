"""The text of a prompt, as bytes: what balancing compares, and what providers keep the beginnings of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from backends.operations import BY_PATH
from backends.protocol import Call

BYTES_PER_TOKEN = 4
"""Without the backends' tokenizers a token is taken for so many bytes of the prompt's JSON."""
KEY_BYTES = BYTES_PER_TOKEN * 256
"""So much of a prompt's beginning says which others begin alike."""
KEPT_FROM_TOKENS = 1024
"""Providers keep no shorter beginnings of prompts (the documentation of both OpenAI and Anthropic)."""
_MAX_ENCODED_BYTES = 1024**2
_MARKERS = {operation.traits.prompt: f'"{operation.traits.prompt}"'.encode() for operation in BY_PATH.values()}
"""How the fields that models read are written."""
_encode = msgspec.json.Encoder().encode


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

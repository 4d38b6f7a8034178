"""What of a call matters to the choice of a key."""

from __future__ import annotations

import msgspec

from backends.operations import Operation
from backends.prompts.text import BYTES_PER_TOKEN, KEPT_FROM_TOKENS, KEY_BYTES, prompt_text
from backends.protocol import Call

_LOOKED_FOR_MEDIA_BYTES = 16 * 1024
_MEDIA_FROM_BYTES = 4 * 1024
_MEDIA_TOKENS = 1000
"""About what OpenAI and Anthropic count for a picture (their guides on vision)."""
_MEDIA_MARKS = (b";base64,", b'"data":"', b'"data": "')


class KeyDemand(msgspec.Struct, frozen=True):
    """`beginning`: what calls have in common whose prompts begin alike; empty where a provider would keep nothing.

    `tokens` are those of the prompt. `is_bound`: it is about what an account keeps, so that only the first key will do.
    """

    model: str
    tokens: int
    writes: bool = True
    """There will be tokens of an answer."""
    beginning: bytes = b""
    is_bound: bool = False


def key_demand(call: Call, model: str, *, shares_objects: bool) -> KeyDemand:
    """With `shares_objects` every key finds what was made with another one."""
    bound = is_bound(call, shares_objects=shares_objects)
    return KeyDemand(model, prompt_tokens(call), call.operation.traits.writes_text, _beginning(call), bound)


def prompt_tokens(call: Call) -> int:
    """About how many tokens a call has before it is answered; none where it is passed on unread.

    Pictures, sound and files inside of it are not text: each counts as so many tokens whatever its size.
    """
    if not call.operation.traits.prompt:
        return 0
    raw = call.raw
    num_media, media_bytes = _media(raw) if len(raw) > _LOOKED_FOR_MEDIA_BYTES else (0, 0)
    return (len(raw) - media_bytes) // BYTES_PER_TOKEN + num_media * _MEDIA_TOKENS or 1


def is_bound(call: Call, *, shares_objects: bool) -> bool:
    """Whether the upstream keeps something for it that a later call can name, or it may name such a thing itself."""
    body = call.body
    if shares_objects:
        return False
    if call.pinned or call.operation is Operation.PASSTHROUGH or body is None:
        return True
    if call.operation is Operation.RESPONSES:
        return body.get("store") is not False or bool(body.get("previous_response_id"))
    return call.operation is Operation.CHAT and bool(body.get("store") or body.get("audio"))


def _media(raw: bytes) -> tuple[int, int]:
    """How many strings of base64 there are, and their bytes: what follows such a mark up to the end of its string."""
    number = num_bytes = 0
    for mark in _MEDIA_MARKS:
        at = raw.find(mark)
        while at >= 0:
            begin = at + len(mark)
            end = raw.find(b'"', begin)
            if end - begin > _MEDIA_FROM_BYTES:
                number += 1
                num_bytes += end - begin
            at = raw.find(mark, max(begin, end))
    return number, num_bytes


def _beginning(call: Call) -> bytes:
    body = call.body
    if body is None or not call.operation.traits.writes_text:
        return b""
    named = call.prompt_cache_key or body.get("prompt_cache_key")
    if named and isinstance(named, str):
        return named.encode("utf-8", "surrogatepass")
    if len(call.raw) < KEPT_FROM_TOKENS * BYTES_PER_TOKEN:
        return b""
    prompt = prompt_text(call)
    return prompt[:KEY_BYTES] if len(prompt) >= KEPT_FROM_TOKENS * BYTES_PER_TOKEN else b""

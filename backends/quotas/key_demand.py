"""What of a call matters to the choice of a key."""

from __future__ import annotations

import msgspec

from backends.operations import Operation
from backends.prompts.size import tokens_of_body
from backends.prompts.text import BYTES_PER_TOKEN, KEPT_FROM_TOKENS, KEY_BYTES, prompt_text
from backends.protocol import Call


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
    """About how many tokens a call has before it is answered; none where it is passed on unread."""
    return (tokens_of_body(call.raw) or 1) if call.operation.traits.prompt else 0


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

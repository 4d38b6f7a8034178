"""What of a call matters to balancing: how long its prompt is, which blocks it begins with, whose session it is.

Without the backends' tokenizers a token is taken for four bytes of the prompt's JSON.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise

import msgspec

from backends.prompts.text import BYTES_PER_TOKEN, KEPT_FROM_TOKENS, KEY_BYTES, prompt_text
from backends.protocol import Call

SESSION_HEADER = b"x-session-id"
_ENDS = tuple(accumulate((1024, *(2048,) * 32, *(4096,) * 112)))
"""Where a prompt's blocks end, in bytes. The first is short, for many prompts share a short beginning; 513 KiB are
145 blocks."""
ENDS_TOKENS = tuple(end // BYTES_PER_TOKEN for end in _ENDS)
_BOUNDS = tuple(pairwise((0, *_ENDS)))


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
        text[:KEY_BYTES],
        dict(call.headers).get(SESSION_HEADER) or call.user.encode("utf-8", "surrogatepass"),
    )


def prompt_cache_key(call: Call, demand: Demand | None = None) -> str:
    """A hash of the tenant and the first 256 tokens, which tells a provider which prompts begin alike and nothing else.

    Empty where a provider would keep nothing: no prompt, or one of fewer than 1,024 tokens. `demand` is what has been
    read of the call.
    """
    if call.body is None or not call.operation.traits.writes_text:
        return ""
    demand = demand or read_demand(call)
    if demand.tokens < KEPT_FROM_TOKENS:
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

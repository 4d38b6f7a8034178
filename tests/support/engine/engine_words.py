"""A model whose tokens are words of known length, for tests of what follows an engine's cache."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from backends.kv_events import KvEventsConfig
from backends.protocol import Call
from policies.pool.load.demand import ENDS_TOKENS
from policies.pool.prompts.engine_text import EngineText
from tests.support.calls import make_call

WORD_BYTES = 4 * ENDS_TOKENS[0] * 3 // 16
"""So that a block of the index is some words and a bit."""


class Words:
    """Token n is a letter, many times. A prompt is the letters of a call's text, in words."""

    def read(self, call: Call) -> bytes | None:
        """The prompt of a call; none for what is not text."""
        content = (call.body or {}).get("messages", [{}])[-1].get("content")
        return self.write([ord(letter) for letter in content]) if isinstance(content, str) else None

    def write(self, tokens: Sequence[int]) -> bytes:
        """The words."""
        return b"".join(bytes([token]) * WORD_BYTES for token in tokens if token < 256)


def engine_text(scope: str = "global") -> EngineText:
    """Prompts in such words."""
    config = KvEventsConfig.model_validate({"endpoint": "tcp://e:1", "tokenizer": "here", "scope": scope})
    text = EngineText(config, lambda folder: Words())
    asyncio.run(text.open())
    return text


def words(text: str) -> list[int]:
    """The tokens of a prompt."""
    return [ord(letter) for letter in text]


def call_for(text: str, *, model: str = "base", tenant: str = "t", **extra: object) -> Call:
    """A call with that prompt."""
    return make_call(text, model=model, tenant=tenant, extra=extra)

"""Prompts in an engine's own words, for backends whose events are followed: the same blocks from calls and from events.

Both sides are text: calls are written by the model's chat template, the tokens of events are looked up. Nothing is
tokenized while a call waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from backends.kv_events import KvEventsConfig
from backends.protocol import Call

_MAX_ADAPTERS = 4096


class Writing(Protocol):
    """How one model's prompts are written."""

    def read(self, call: Call) -> bytes | None:
        """What the engine reads of a call; None where that cannot be said."""

    def write(self, tokens: Sequence[int]) -> bytes:
        """The text of tokens in the middle of a prompt."""


class EngineText:
    """What backends of one model, and one way to keep tenants apart, have in common. Opened before the first call."""

    def __init__(self, config: KvEventsConfig, load: Callable[[str], Writing]) -> None:
        self._config = config
        self._load = load
        self._writing: Writing | None = None
        self._adapters: set[str] = set()

    @property
    def way(self) -> Hashable:
        """What tells it from others: backends of one way can share it."""
        return self._config.tokenizer, self._config.scope

    async def open(self) -> None:
        """Read the tokenizer. Raises: ConfigurationError."""
        self._writing = await asyncio.to_thread(self._load, self._config.tokenizer)

    async def aclose(self) -> None:
        """Nothing: calls may still be there."""

    def read(self, call: Call, model: str | None = None) -> tuple[bytes, Hashable] | None:
        """A call's prompt and what its blocks begin with; None where it is not known how the engine reads it.

        `model`: what the backends are asked for, where that is not the client's word.
        """
        text = self._writing.read(call) if self._writing is not None else None
        if text is None:
            return None
        name = call.model if model is None else model
        salt = self._config.salt(call)
        return text, self.seed(name if name in self._adapters else "", (salt,) if salt else ())

    def write(self, tokens: Sequence[int]) -> bytes:
        """The text of an event's tokens."""
        assert self._writing is not None, "it is opened before those who follow events"
        return self._writing.write(tokens)

    def seed(self, adapter: str, extras: tuple[str, ...]) -> Hashable:
        """What the blocks of a prompt begin with; `extras` as the engine says them of its first block."""
        return ("engine text", adapter, extras)

    def note_adapter(self, adapter: str) -> None:
        """The engine has an adapter of that name, so calls for a model of that name are for it."""
        if len(self._adapters) < _MAX_ADAPTERS:
            self._adapters.add(adapter)

"""Prompts as the text that an engine reads, and its tokens as that text again; for who follows an engine's cache.

Nothing is tokenized: a chat is written by the model's template, and tokens are looked up, so that both can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backends.engine.errors import ModelError, RequestRefused
from backends.engine.text.tokenizer import Tokenizer
from backends.errors import ConfigurationError, InvalidRequest
from backends.operations import Operation
from backends.protocol import Call
from backends.serving.fields import Message
from backends.serving.messages import template_messages

_MAX_BYTES = 1024**2
_MAX_MESSAGES = 1000
"""A template takes some microseconds for each, and other calls wait for that."""


class _Chat(msgspec.Struct):
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


class PromptText:
    """One model's way of writing. Spaces are left out where its tokens do not say whether they stand for one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._dropped = b"" if tokenizer.is_byte_level else b" "
        self._written: dict[int, bytes] = {}
        self._begin = b"".join(map(tokenizer.written_bytes, tokenizer.encode("")))

    def read(self, call: Call) -> bytes | None:
        """What the engine reads of a call; None where that cannot be said, as of pictures."""
        body = call.body
        if body is None or len(call.raw) > _MAX_BYTES:
            return None
        try:
            if call.operation is Operation.CHAT:
                chat = self._chat(body)
                return None if chat is None else self._plain(chat)
            if call.operation is Operation.COMPLETION:
                return self._completion(body.get("prompt"))
        except (msgspec.ValidationError, InvalidRequest, RequestRefused, UnicodeEncodeError, TypeError):
            # The engine will refuse it, or knows more than this does. A TypeError: template variables named as ours.
            return None
        return None

    def write(self, tokens: Sequence[int]) -> bytes:
        """The text of tokens in the middle of a prompt."""
        written = self._written
        try:
            return b"".join([written[token] for token in tokens])
        except KeyError:
            for token in tokens:
                if token < self._tokenizer.vocab_size:
                    written[token] = self._tokenizer.written_bytes(token).translate(None, self._dropped)
            return b"".join([written.get(token, b"") for token in tokens])

    def _chat(self, body: Mapping[str, Any]) -> str | None:
        chat = msgspec.convert(body, _Chat)
        if len(chat.messages) > _MAX_MESSAGES:
            return None
        for message in chat.messages:
            if isinstance(message.content, list) and all(part.type == "text" for part in message.content):
                # As engines join parts for templates that take text.
                message.content = "\n".join(part.text or "" for part in message.content)
        variables = chat.chat_template_kwargs or {}
        messages = template_messages(chat.messages)
        return self._tokenizer.render_chat(messages, chat.tools, chat.add_generation_prompt, **variables)

    def _completion(self, prompt: object) -> bytes | None:
        if isinstance(prompt, str):
            return self._begin.translate(None, self._dropped) + self._plain(prompt)
        if isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt):
            return self.write(prompt)
        return None

    def _plain(self, text: str) -> bytes:
        return text.encode().translate(None, self._dropped)


def load_prompt_text(folder: str) -> PromptText:
    """The way of writing of the model whose tokenizer is in that folder.

    Raises: ConfigurationError.
    """
    try:
        tokenizer = Tokenizer(Path(folder))
    except ModelError as error:
        raise ConfigurationError(f"kv_events.tokenizer: {error}") from error
    return PromptText(tokenizer)

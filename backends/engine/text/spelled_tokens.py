"""Special tokens that a chat's messages spell out: there they are text. Those that the template writes are themselves.

Else whoever writes a word of a prompt, a web page that a tool has read say, could end the turn and begin the system's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from typing import Any

from tokenizers import Tokenizer as Backend

_MARK = "\ufdd0{}\ufdd1"
"""Stands for a token while the template writes: two code points that are no characters, and a number between them."""


class SpelledTokens:
    """Encodes chats. Any thread may use it, once it is made: making it changes the tokenizer for a moment."""

    def __init__(self, backend: Backend, special: Mapping[int, str]) -> None:
        """`special`: the tokens that are no text, each with its name."""
        self._backend = backend
        backend.encode_special_tokens = True
        self._as_text = {
            token: [part for part in self._encode(name) if part != token] for token, name in special.items()
        }
        backend.encode_special_tokens = False

    def encode_chat(self, render: Callable[[Any, Any], str], messages: Any, tools: Any) -> list[int]:
        """The tokens of a chat: of what `render` makes of messages and tools, which may be asked twice."""
        text = render(messages, tools)
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        names = {
            text[slice(*place)].strip(): token
            for index, token in enumerate(ids)
            if token in self._as_text and (place := encoding.token_to_chars(index)) is not None
        }
        chat = (messages, tools)
        spelled = {name: token for name, token in names.items() if name and any(name in part for part in _texts(chat))}
        if not spelled:
            return ids
        free = (mark for mark in map(_MARK.format, count()) if mark not in text)
        marks = dict(zip(spelled, free, strict=False))
        text = render(*_replaced(chat, marks, _any_of(marks)))
        as_text = {marks[name]: self._as_text[token] for name, token in spelled.items()}
        parts = _any_of(as_text).split(text)
        return [token for part in parts for token in (as_text[part] if part in as_text else self._encode(part))]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    """Any of them, the longest first, as a group: what is split by it keeps them."""
    return re.compile(f"({'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})")


def _texts(value: Any) -> Iterator[str]:
    """Every text in JSON, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _replaced(value: Any, replacements: Mapping[str, str], pattern: re.Pattern[str]) -> Any:
    """JSON with the parts of its texts that `pattern` finds replaced."""
    if isinstance(value, str):
        return pattern.sub(lambda match: replacements[match[0]], value)
    if isinstance(value, Mapping):
        return {
            _replaced(key, replacements, pattern): _replaced(item, replacements, pattern) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_replaced(item, replacements, pattern) for item in value]
    return value

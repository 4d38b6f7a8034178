"""A chat choice in both forms: as one message, and as the deltas of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from policies.cache.replay.merge import CannotConvert, MergedObject, is_empty, list_of, object_of

_MESSAGE_TEXTS = frozenset({"content", "refusal", "reasoning", "reasoning_content"})
_MESSAGE_LISTS = frozenset({"thinking_blocks"})
_CALL_TEXTS = frozenset({"arguments", "input"})
_LOGPROB_LISTS = frozenset({"content", "refusal"})

_CHOICE_FIELDS = frozenset({"index", "message", "delta", "logprobs", "finish_reason"})
_LAST_FIELDS = ("content", "refusal", "tool_calls", "function_call")
"""Message fields in the order in which a model says them; whatever else a message has comes before."""


def split_choice(choice: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """The choice as the choices of successive chunks: the role, each field by itself, the finish reason.

    Raises: CannotConvert.
    """
    message = object_of(choice.get("message"))
    if choice.get("finish_reason") is None or not isinstance(message.get("content"), str | None):
        raise CannotConvert
    logprobs = choice.get("logprobs")
    voice = next((name for name in ("content", "refusal") if message.get(name)), None)

    yield _chunk_choice(index, _opening(message))
    for delta in _deltas(message):
        is_voice = voice is not None and voice in delta
        yield _chunk_choice(index, delta, logprobs if is_voice else None)
    last = _chunk_choice(index, {}, logprobs if voice is None else None)
    last["finish_reason"] = choice["finish_reason"]
    last.update((name, value) for name, value in choice.items() if name not in _CHOICE_FIELDS)
    yield last


def _opening(message: dict[str, Any]) -> dict[str, Any]:
    opening = {name: value for name, value in message.items() if is_empty(value)}
    if message.get("content"):
        opening["content"] = ""
    return {**opening, "role": message.get("role") or "assistant"}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    names = [name for name in message if name != "role" and name not in _LAST_FIELDS]
    for name in (*names, *_LAST_FIELDS):
        value = message.get(name)
        if is_empty(value):
            continue
        if name == "tool_calls":
            for position, tool_call in enumerate(list_of(value)):
                yield {"tool_calls": [{**object_of(tool_call), "index": position}]}
        else:
            yield {name: value}


def _chunk_choice(index: int, delta: dict[str, Any], logprobs: Any = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


class ChatChoice:
    """One choice of a stream while its chunks come in."""

    __slots__ = ("_finish_reason", "_function_call", "_index", "_logprobs", "_message", "_rest", "_tool_calls")

    def __init__(self, index: int) -> None:
        self._index = index
        self._message = MergedObject(texts=_MESSAGE_TEXTS, lists=_MESSAGE_LISTS)
        self._tool_calls: dict[int, _ToolCall] = {}
        self._function_call = MergedObject(texts=_CALL_TEXTS)
        self._logprobs = MergedObject(lists=_LOGPROB_LISTS)
        self._rest = MergedObject()
        self._finish_reason: str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """Take in this choice's share of one chunk.

        Raises: CannotConvert.
        """
        for name, value in object_of(choice.get("delta") or {}).items():
            if name == "tool_calls" and value:
                self._add_tool_calls(value)
            elif name == "function_call" and value:
                self._function_call.add(object_of(value))
            else:
                self._message.put(name, value)
        if choice.get("logprobs") is not None:
            self._logprobs.add(object_of(choice["logprobs"]))
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        self._rest.add({name: value for name, value in choice.items() if name not in _CHOICE_FIELDS})

    def whole(self) -> dict[str, Any]:
        """The choice with its message.

        Raises: CannotConvert where it never finished.
        """
        if self._finish_reason is None:
            raise CannotConvert
        message = {"role": "assistant", "content": None, "refusal": None, **self._message.whole()}
        if self._tool_calls:
            message["tool_calls"] = [call.whole() for _, call in sorted(self._tool_calls.items())]
        if self._function_call:
            message["function_call"] = self._function_call.whole()
        return {
            "index": self._index,
            "message": message,
            "logprobs": self._logprobs.whole() or None,
            "finish_reason": self._finish_reason,
            **self._rest.whole(),
        }

    def _add_tool_calls(self, deltas: object) -> None:
        for delta in list_of(deltas):
            index = object_of(delta).get("index")
            if not isinstance(index, int):
                raise CannotConvert
            self._tool_calls.setdefault(index, _ToolCall()).add(delta)


class _ToolCall:
    """One tool call while its deltas come in: a function's arguments or a custom tool's input are the texts."""

    __slots__ = ("_fields", "_inner")

    def __init__(self) -> None:
        self._fields = MergedObject()
        self._inner: dict[str, MergedObject] = {}

    def add(self, delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            if name in ("function", "custom") and value is not None:
                self._inner.setdefault(name, MergedObject(texts=_CALL_TEXTS)).add(object_of(value))
            elif name != "index":
                self._fields.put(name, value)

    def whole(self) -> dict[str, Any]:
        return {**self._fields.whole(), **{name: parts.whole() for name, parts in self._inner.items()}}

"""A stored answer in the form a call asks for: as it came, or converted between JSON and the events of a stream."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from backends.clock import Clock
from backends.json_errors import NOT_JSON
from backends.operations import Operation
from backends.protocol import Call
from backends.sse import DONE, DONE_EVENT, encode_event, event_data, split_events
from policies.cache.entry import AnswerForm, Entry
from policies.cache.replay import chat as replay_chat
from policies.cache.replay import completion as replay_completion
from policies.cache.replay.merge import CannotConvert, is_empty, list_of, object_of

CONTENT_TYPES = {AnswerForm.JSON: b"application/json", AnswerForm.SSE: b"text/event-stream; charset=utf-8"}

_TOKEN_CHARS = 4
_SAID = re.compile(rb'"content"\s*:\s*"((?:[^"\\]|\\.)*)"')
_FINGERPRINT = b'"system_fingerprint":"'
_FIRST_SAID = ("id", "created", "model")
"""Top-level fields of which the first value that says something holds; of the others the last one does."""


class _Shape(msgspec.Struct, frozen=True):
    """What differs between the operations whose answers can be converted."""

    whole_object: str
    chunk_object: str
    split_choice: Callable[[dict[str, Any], int], Iterator[dict[str, Any]]]
    choice: type[replay_chat.ChatChoice] | type[replay_completion.CompletionChoice]


_SHAPES = {
    Operation.CHAT: _Shape(
        "chat.completion", "chat.completion.chunk", replay_chat.split_choice, replay_chat.ChatChoice
    ),
    Operation.COMPLETION: _Shape(
        "text_completion", "text_completion", replay_completion.split_choice, replay_completion.CompletionChoice
    ),
}


def render(entry: Entry, call: Call, piece_chars: int | None = None) -> bytes | None:
    """The body that answers this call, or None where the entry cannot give it faithfully.

    `piece_chars`: where JSON becomes a stream, its text comes in pieces of about so many characters. On a route that
    hides what was stored, only the recorded form is faithful, and its tempo is noted for who holds it back.
    """
    watch = call.facts.stopwatch
    if watch is not None:
        if entry.tempo is None or call.stream != (entry.form is AnswerForm.SSE):
            return None
        has_usage_event = call.include_usage or _may_keep_usage(entry)
        watch.replays = entry.tempo if has_usage_event else entry.tempo.without(_num_before_usage(entry))
    if not call.stream:
        return whole_body(entry, call.operation)
    shape = _SHAPES.get(call.operation)
    if entry.form is AnswerForm.SSE:
        return entry.body if shape is None else _with_asked_usage(entry, call.include_usage)
    if shape is None:
        return None
    try:
        return _to_events(shape, entry.body, call.include_usage, piece_chars)
    except (*NOT_JSON, CannotConvert):
        return None


def content_type_of(entry: Entry, call: Call) -> bytes:
    """What `render` gives for this call: the upstream's own word where the form is the stored one."""
    form = AnswerForm.SSE if call.stream else AnswerForm.JSON
    return entry.content_type if entry.form is form else CONTENT_TYPES[form]


def whole_body(entry: Entry, operation: Operation) -> bytes | None:
    """The answer as one JSON document, or None where its events do not make one."""
    if entry.form is AnswerForm.JSON:
        return entry.body
    shape = _SHAPES.get(operation)
    if shape is None:
        return None
    try:
        return _to_json(shape, entry.body)
    except (*NOT_JSON, CannotConvert):
        return None


class Replayed:
    """The source of a stream that is already whole: one piece, then the end."""

    __slots__ = ("_body",)

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        """Everything the first time, b"" from then on."""
        body, self._body = self._body, b""
        return body

    async def aclose(self) -> None:
        """Forget it."""
        self._body = b""


class PacedReplay:
    """The source of a stream that is already whole, event by event, at so many tokens per second."""

    __slots__ = ("_clock", "_events", "_tokens_per_s", "_wait_s")

    def __init__(self, body: bytes, tokens_per_s: float, clock: Clock) -> None:
        self._events = deque(split_events(body))
        self._tokens_per_s = tokens_per_s
        self._clock = clock
        self._wait_s = 0.0

    async def read(self) -> bytes:
        """The next event, when it is due; b"" after the last one."""
        if not self._events:
            return b""
        if self._wait_s:
            await self._clock.sleep(self._wait_s)
        event = self._events.popleft()
        self._wait_s = max(1.0, _num_said(event) / _TOKEN_CHARS) / self._tokens_per_s if self._events else 0.0
        return event

    async def aclose(self) -> None:
        """Forget the rest."""
        self._events.clear()


def _num_said(event: bytes) -> int:
    """How many characters of text an event of a chat brings, about."""
    match = _SAID.search(event)
    return len(match[1]) if match is not None else 0


def _num_before_usage(entry: Entry) -> int:
    """How many events come before the one that holds the usage and nothing else."""
    assert entry.usage_event is not None, "there is one"
    return sum(1 for _ in split_events(entry.body[: entry.usage_event[0]]))


def _with_asked_usage(entry: Entry, include_usage: bool) -> bytes | None:
    if include_usage:
        return entry.body if entry.shows_usage else None
    if entry.usage_event is None or _may_keep_usage(entry):
        return entry.body
    start, end = entry.usage_event
    return entry.body[:start] + entry.body[end:]


def _may_keep_usage(entry: Entry) -> bool:
    """Whether the events may stay as they are for who asked for no usage.

    Also where the usage chunk alone names the fingerprint: it is taken out at the edge, as that of a new answer is, and
    what it names put where the server would have.
    """
    if entry.usage_event is None:
        return True
    start, end = entry.usage_event
    return _FINGERPRINT in entry.body[start:end] and _FINGERPRINT not in entry.body[:start]


def _to_events(shape: _Shape, body: bytes, include_usage: bool, piece_chars: int | None) -> bytes:
    answer = object_of(msgspec.json.decode(body))
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    head["object"] = shape.chunk_object
    if include_usage:
        head["usage"] = None
    chunks = []
    for position, choice in enumerate(list_of(answer.get("choices"))):
        index = object_of(choice).get("index", position)
        parts = shape.split_choice(choice, index)
        if piece_chars is not None:
            parts = (piece for part in parts for piece in _in_pieces(part, piece_chars))
        chunks += [{**head, "choices": [part]} for part in parts]
    if not chunks:
        raise CannotConvert
    if include_usage:
        chunks.append({**head, "choices": [], "usage": object_of(answer.get("usage"))})
    return b"".join(encode_event(msgspec.json.encode(chunk)) for chunk in chunks) + DONE_EVENT


def _in_pieces(choice: dict[str, Any], piece_chars: int) -> Iterator[dict[str, Any]]:
    """A choice of a chunk as several, if it says much; one with log-probabilities stays whole."""
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else None
    if not isinstance(text, str) or len(text) <= piece_chars or choice.get("logprobs") is not None:
        yield choice
        return
    for start in range(0, len(text), piece_chars):
        yield {**choice, "delta": {"content": text[start : start + piece_chars]}}


def _to_json(shape: _Shape, body: bytes) -> bytes:
    head: dict[str, Any] = {}
    usage = None
    choices: dict[int, replay_chat.ChatChoice | replay_completion.CompletionChoice] = {}
    for chunk in _chunks(body):
        for name, value in chunk.items():
            if name == "choices":
                for choice in list_of(value or []):
                    index = object_of(choice).get("index", 0)
                    if not isinstance(index, int):
                        raise CannotConvert
                    if index not in choices:
                        choices[index] = shape.choice(index)
                    choices[index].add(choice)
            elif name == "usage":
                usage = value if value is not None else usage
            elif name in _FIRST_SAID:
                head[name] = value if is_empty(head.get(name)) else head[name]
            elif name != "obfuscation" and (value is not None or name not in head):
                head[name] = value
    if not choices:
        raise CannotConvert
    whole = {**head, "object": shape.whole_object, "choices": [choices[index].whole() for index in sorted(choices)]}
    if usage is not None:
        whole["usage"] = usage
    return msgspec.json.encode(whole)


def _chunks(body: bytes) -> Iterator[dict[str, Any]]:
    """The chunks of a stream up to its `[DONE]`.

    Raises: CannotConvert where there is none, or an error among them.
    """
    for event in split_events(body):
        data = event_data(event)
        if data is None:
            continue
        if data.strip() == DONE:
            return
        chunk = object_of(msgspec.json.decode(data))
        if chunk.get("error") is not None:
            raise CannotConvert
        yield chunk
    raise CannotConvert

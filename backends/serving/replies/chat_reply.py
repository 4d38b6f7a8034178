"""Chat completions in OpenAI's shape, whole and as the chunks of a stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from backends.charges.usage import Usage
from backends.engine.request import Event
from backends.serving.replies.parts import Head, UsageTally, Vocabulary, chat_logprobs
from backends.serving.tool_syntax import FunctionCall, ParsedText
from backends.sse import DONE_EVENT, encode_event


class Parser(Protocol):
    """Takes tool calls out of a text as it arrives; see `backends/serving/tool_syntax.py`."""

    def feed(self, text: str) -> ParsedText:
        """What this text completes."""

    def finish(self) -> ParsedText:
        """What is left at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """What the client asked of the form of its answer. `make_parser` is None where no tools can be called.

    `call_token` is the token that begins a call where it has no text of its own; `call_tag` is how parsers know it.
    """

    num_choices: int = 1
    top_logprobs: int | None = None
    has_prediction: bool = False
    make_parser: Callable[[], Parser] | None = None
    has_parallel_calls: bool = True
    call_id_length: int = 0
    call_token: int | None = None
    call_tag: str = ""


class ChoiceReply:
    """One choice: its deltas as they come out of the engine's events."""

    def __init__(self, head: Head, index: int, shape: ChatShape) -> None:
        self.index = index
        self.finish_reason: str | None = None
        self._head = head
        self._shape = shape
        self._parser = shape.make_parser() if shape.make_parser is not None else None
        self._num_calls = 0

    def deltas(self, event: Event) -> list[dict[str, Any]]:
        """What the client is shown of an event."""
        if self._parser is None:
            found = [ParsedText(event.text)]
        else:
            # Texts of special tokens are left out of answers. Nothing that counts stands before this one in its step.
            is_call = self._shape.call_token is not None and self._shape.call_token in event.tokens
            found = [self._parser.feed(self._shape.call_tag + event.text if is_call else event.text)]
            if event.finish_reason is not None:
                found.append(self._parser.finish())
        deltas = [delta for piece in found for delta in self._shown(piece)]
        if event.finish_reason is not None:
            has_called = self._num_calls and event.finish_reason == "stop"
            self.finish_reason = "tool_calls" if has_called else event.finish_reason
        return deltas

    def _shown(self, piece: ParsedText) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = [{"content": piece.text}] if piece.text else []
        for call in piece.calls:
            if self._num_calls and not self._shape.has_parallel_calls:
                break
            deltas.append({"tool_calls": [{"index": self._num_calls, **self._call(call)}]})
            self._num_calls += 1
        return deltas

    def _call(self, call: FunctionCall) -> dict[str, Any]:
        seed = f"{self._head.id}/{self.index}/{self._num_calls}".encode()
        number = hashlib.blake2b(seed, digest_size=12).hexdigest()
        length = self._shape.call_id_length
        return {
            "id": number[:length] if length else f"call_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }


class ChatAnswer:
    """A whole chat completion."""

    def __init__(self, head: Head, shape: ChatShape, vocabulary: Vocabulary) -> None:
        self._head = head
        self._shape = shape
        self._vocabulary = vocabulary
        self._tally = UsageTally()
        self._choices = [ChoiceReply(head, index, shape) for index in range(shape.num_choices)]
        self._texts: list[list[str]] = [[] for _ in self._choices]
        self._calls: list[list[dict[str, Any]]] = [[] for _ in self._choices]
        self._logprobs: list[list[msgspec.Raw]] = [[] for _ in self._choices]
        """Written at once: as objects they would take four times the room, and all be written in one go at the end."""

    def take(self, event: Event) -> None:
        """Note what a step brought."""
        self._tally.take(event)
        index = event.index
        for delta in self._choices[index].deltas(event):
            if "content" in delta:
                self._texts[index].append(delta["content"])
            else:
                self._calls[index].extend(delta["tool_calls"])
        if self._shape.top_logprobs is not None and event.logprobs is not None:
            told = chat_logprobs(self._vocabulary, event.logprobs, self._shape.top_logprobs)
            self._logprobs[index] += [msgspec.Raw(msgspec.json.encode(each)) for each in told]

    def drain(self) -> bytes:
        """Nothing before the end."""
        return b""

    def finish(self) -> bytes:
        """The body."""
        return msgspec.json.encode(
            {
                **self._head.fields("chat.completion"),
                "choices": [self._choice(index) for index in range(len(self._choices))],
                "usage": self._tally.fields(with_prediction=self._shape.has_prediction),
            }
        )

    def usage(self) -> Usage:
        """Tokens of the whole call."""
        return self._tally.usage()

    def _choice(self, index: int) -> dict[str, Any]:
        calls = [{name: value for name, value in call.items() if name != "index"} for call in self._calls[index]]
        text = "".join(self._texts[index])
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": _logprobs(self._logprobs[index]) if self._shape.top_logprobs is not None else None,
            "finish_reason": self._choices[index].finish_reason,
        }


class ChatStream:
    """A streamed chat completion: the role of each choice with its first event, then deltas as they come."""

    def __init__(self, head: Head, shape: ChatShape, vocabulary: Vocabulary) -> None:
        self._chunk_head = head.fields("chat.completion.chunk")
        self._shape = shape
        self._vocabulary = vocabulary
        self._tally = UsageTally()
        self._choices = [ChoiceReply(head, index, shape) for index in range(shape.num_choices)]
        self._begun: set[int] = set()
        self._taken: list[Event] = []

    def take(self, event: Event) -> None:
        """Note what a step brought; it is written when somebody reads."""
        self._tally.take(event)
        self._taken.append(event)

    def replay(self, event: Event) -> None:
        """Goes on by what was told elsewhere, and writes nothing of it."""
        self._begun.add(event.index)
        self._choices[event.index].deltas(event)

    def drain(self) -> bytes:
        """The chunks of what was taken since the last call."""
        taken, self._taken = self._taken, []
        return b"".join(chunk for event in taken for chunk in self._chunks(event))

    def finish(self) -> bytes:
        """The usage and the end of the stream."""
        usage = self._tally.fields(with_prediction=self._shape.has_prediction)
        last = {**self._chunk_head, "choices": [], "usage": usage}
        return self.drain() + encode_event(msgspec.json.encode(last)) + DONE_EVENT

    def usage(self) -> Usage:
        """Tokens of the whole call."""
        return self._tally.usage()

    def _chunks(self, event: Event) -> list[bytes]:
        choice = self._choices[event.index]
        chunks = []
        if event.index not in self._begun:
            self._begun.add(event.index)
            chunks.append(self._chunk(event.index, {"role": "assistant", "content": ""}))
        deltas = choice.deltas(event)
        logprobs = None
        if self._shape.top_logprobs is not None and event.logprobs:
            logprobs = _logprobs(chat_logprobs(self._vocabulary, event.logprobs, self._shape.top_logprobs))
            deltas = deltas or [{}]
        for delta in deltas:
            chunks.append(self._chunk(event.index, delta, logprobs))
            logprobs = None
        if choice.finish_reason is not None:
            chunks.append(self._chunk(event.index, {}, None, choice.finish_reason))
        return chunks

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, reason: str | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return encode_event(msgspec.json.encode({**self._chunk_head, "choices": [choice]}))


def _logprobs(content: Sequence[dict[str, Any] | msgspec.Raw]) -> dict[str, Any]:
    return {"content": list(content), "refusal": None}

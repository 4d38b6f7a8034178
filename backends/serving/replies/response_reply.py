"""Responses, OpenAI's newer API, whole and as the events of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from backends.charges.usage import Usage
from backends.engine.request import Event
from backends.serving.replies.chat_reply import ChatShape, ChoiceReply
from backends.serving.replies.parts import Head, UsageTally, Vocabulary, chat_logprobs
from backends.sse import encode_event

Told = tuple[str, dict[str, Any]]
"""An event of a stream: its type, and its fields besides that and the number."""


class _Output:
    """The items of one answer as they come about, and the events that tell of them."""

    def __init__(self, head: Head, shape: ChatShape, vocabulary: Vocabulary) -> None:
        self.items: list[dict[str, Any]] = []
        self._choice = ChoiceReply(head, 0, shape)
        self._shape = shape
        self._vocabulary = vocabulary
        self._number = head.id.partition("_")[2]
        self._texts: list[str] | None = None
        self._logprobs: list[dict[str, Any]] = []
        self._told_logprobs = 0

    @property
    def is_cut(self) -> bool:
        """Whether it ended at its limit of tokens."""
        return self._choice.finish_reason == "length"

    def take(self, event: Event) -> list[Told]:
        """Goes on by what a step brought."""
        told: list[Told] = []
        deltas = self._choice.deltas(event)
        if self._shape.top_logprobs is not None and event.logprobs:
            self._logprobs += chat_logprobs(self._vocabulary, event.logprobs, self._shape.top_logprobs)
        for delta in deltas:
            if "content" in delta:
                told += self._say(delta["content"])
            for call in delta.get("tool_calls", ()):
                told += [*self._close(), *self._call(call)]
        if self._choice.finish_reason is not None:
            if not self.items:
                told += self._open()
            told += self._close("incomplete" if self.is_cut else "completed")
        return told

    def _say(self, text: str) -> list[Told]:
        told = self._open() if self._texts is None else []
        assert self._texts is not None, "a message is open"
        self._texts.append(text)
        fresh, self._told_logprobs = self._logprobs[self._told_logprobs :], len(self._logprobs)
        return [*told, ("response.output_text.delta", {**self._place(), "delta": text, "logprobs": fresh})]

    def _open(self) -> list[Told]:
        self._texts = []
        item = {"id": self._id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        self.items.append(item)
        place = self._place()
        return [
            ("response.output_item.added", {"output_index": place["output_index"], "item": dict(item)}),
            ("response.content_part.added", {**place, "part": _part("", [])}),
        ]

    def _close(self, status: str = "completed") -> list[Told]:
        """The end of the message that is open, if one is."""
        if self._texts is None:
            return []
        text, self._texts = "".join(self._texts), None
        logprobs, self._logprobs, self._told_logprobs = self._logprobs, [], 0
        place = self._place()
        item = self.items[-1]
        item.update(status=status, content=[_part(text, logprobs)])
        return [
            ("response.output_text.done", {**place, "text": text, "logprobs": logprobs}),
            ("response.content_part.done", {**place, "part": item["content"][0]}),
            ("response.output_item.done", {"output_index": place["output_index"], "item": item}),
        ]

    def _call(self, call: Mapping[str, Any]) -> list[Told]:
        """A call, which is known when it is whole, or cut."""
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        # Tokens of a call belong to no text.
        self._logprobs, self._told_logprobs = [], 0
        item = {
            "id": self._id("fc"),
            "type": "function_call",
            "call_id": call["id"],
            "name": name,
            "arguments": arguments,
            "status": "incomplete" if self.is_cut else "completed",
        }
        self.items.append(item)
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return [
            ("response.output_item.added", {"output_index": place["output_index"], "item": begun}),
            ("response.function_call_arguments.delta", {**place, "delta": arguments}),
            ("response.function_call_arguments.done", {**place, "name": name, "arguments": arguments}),
            ("response.output_item.done", {"output_index": place["output_index"], "item": item}),
        ]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, "content_index": 0}

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._number}{len(self.items)}"


class ResponseAnswer:
    """A whole response. `echoed` is what it says again of its question."""

    def __init__(self, head: Head, shape: ChatShape, vocabulary: Vocabulary, echoed: Mapping[str, Any]) -> None:
        self._head = {"id": head.id, "object": "response", "created_at": head.created, "model": head.model, **echoed}
        self._output = _Output(head, shape, vocabulary)
        self._tally = UsageTally()

    def take(self, event: Event) -> None:
        """Note what a step brought."""
        self._tally.take(event)
        self._output.take(event)

    def drain(self) -> bytes:
        """Nothing before the end."""
        return b""

    def finish(self) -> bytes:
        """The body."""
        return msgspec.json.encode(_whole(self._head, self._output, self.usage()))

    def usage(self) -> Usage:
        """Tokens of the whole call."""
        return self._tally.usage()


class ResponseStream:
    """A streamed response: numbered events, each with a name; the last one has the whole response."""

    def __init__(self, head: Head, shape: ChatShape, vocabulary: Vocabulary, echoed: Mapping[str, Any]) -> None:
        self._head = {"id": head.id, "object": "response", "created_at": head.created, "model": head.model, **echoed}
        self._output = _Output(head, shape, vocabulary)
        self._tally = UsageTally()
        begun = {"response": {**self._head, **_state("in_progress"), "output": []}}
        self._told: list[Told] = [("response.created", begun), ("response.in_progress", begun)]
        self._num_written = 0

    def take(self, event: Event) -> None:
        """Note what a step brought."""
        self._tally.take(event)
        self._told += self._output.take(event)

    def drain(self) -> bytes:
        """The events of what was taken since the last call."""
        told, self._told = self._told, []
        return b"".join(map(self._written, told))

    def finish(self) -> bytes:
        """The end of the stream; there is no [DONE] in this API."""
        whole = _whole(self._head, self._output, self.usage())
        self._told.append((f"response.{whole['status']}", {"response": whole}))
        return self.drain()

    def usage(self) -> Usage:
        """Tokens of the whole call."""
        return self._tally.usage()

    def _written(self, told: Told) -> bytes:
        name, fields = told
        data = msgspec.json.encode({"type": name, **fields, "sequence_number": self._num_written})
        self._num_written += 1
        return b"event: %b\n%b" % (name.encode(), encode_event(data))


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _state(status: str) -> dict[str, Any]:
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {"status": status, "error": None, "incomplete_details": cut}


def _whole(head: Mapping[str, Any], output: _Output, usage: Usage) -> dict[str, Any]:
    tokens = {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    return {**head, **_state("incomplete" if output.is_cut else "completed"), "output": output.items, "usage": tokens}

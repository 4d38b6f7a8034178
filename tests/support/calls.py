"""Calls for tests, with what a test does not care about filled in; and reading a reply to its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from backends.operations import Operation
from backends.protocol import Call, Facts, Reply, Timeouts

_PATHS = {
    Operation.CHAT: "/chat/completions",
    Operation.COMPLETION: "/completions",
    Operation.EMBEDDING: "/embeddings",
    Operation.RESPONSES: "/responses",
    Operation.PASSTHROUGH: "/echo",
}
_TEXT_FIELD = {Operation.COMPLETION: "prompt", Operation.EMBEDDING: "input", Operation.RESPONSES: "input"}


def make_call(
    text: str = "hello",
    *,
    operation: Operation = Operation.CHAT,
    stream: bool = False,
    extra: Mapping[str, Any] | None = None,
    timeouts: Timeouts | None = None,
    deadline: float | None = None,
    **fields: Any,
) -> Call:
    """A call that asks `text`. `extra` goes into its body, `fields` into the call itself.

    `deadline` is in monotonic seconds; without one it is `timeouts.total_s` from now on the system's clock.
    """
    timeouts = timeouts or Timeouts(total_s=10.0)
    asked = {"messages": [{"role": "user", "content": text}]}
    field = _TEXT_FIELD.get(operation)
    body: dict[str, Any] = {"model": "test-model", **({field: text} if field else asked)}
    if stream:
        body["stream"] = True
    body.update(extra or {})
    defaults: dict[str, Any] = {
        "operation": operation,
        "path": _PATHS[operation],
        "raw": msgspec.json.encode(body),
        "body": body,
        "model": "test-model",
        "deadline": time.monotonic() + timeouts.total_s if deadline is None else deadline,
        "facts": Facts(),
        "headers": [(b"content-type", b"application/json")],
        "stream": stream,
        "timeouts": timeouts,
    }
    return Call(**{**defaults, **fields})


async def read_and_leave(reply: Reply, num_pieces: int) -> None:
    """As a client that goes in the middle of a stream, and is let go twice."""
    assert reply.stream is not None
    for _ in range(num_pieces):
        await reply.stream.read()
    await reply.aclose()
    await reply.aclose()


async def read_all(reply: Reply) -> bytes:
    """The whole answer; the reply is closed afterwards."""
    try:
        if reply.stream is None:
            assert reply.body is not None
            return reply.body
        pieces = []
        while piece := await reply.stream.read():
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        await reply.aclose()


def event_values(stream: bytes) -> list[Any]:
    """The decoded data of each event of a whole SSE stream in OpenAI's dialect, without the [DONE].

    Raises: AssertionError where it is not one `data:` line an event (an `event:` line may come first).
    """
    values = []
    assert stream.endswith(b"\n\n"), "the last event is not finished"
    for event in stream[:-2].split(b"\n\n"):
        line = event.splitlines()[-1]
        assert line.startswith(b"data: "), event
        if line != b"data: [DONE]":
            values.append(msgspec.json.decode(line[6:]))
    return values


def streamed_text(stream: bytes) -> str:
    """The text of a chat stream's first choice, deltas joined."""
    choices = [choice for value in event_values(stream) for choice in value["choices"] if choice["index"] == 0]
    return "".join(choice["delta"].get("content") or "" for choice in choices)

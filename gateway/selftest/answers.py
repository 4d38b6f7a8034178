"""Correct answers of an OpenAI-compatible server, as bytes, which a lying upstream sends unchanged or falsifies."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any

DONE = b"data: [DONE]\n\n"
WORDS = ("one ", "two ", "three ", "four ", "five ")
_CREATED = 1_700_000_000
_DIMENSIONS = 8


def event(data: object) -> bytes:
    """One event of a stream."""
    return b"data: " + _json(data) + b"\n\n"


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
    """One event of a streamed chat answer with one choice."""
    return event(_chunk([{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more))


def usage_chunk(num_tokens: int) -> bytes:
    """The event with the usage, as OpenAI sends it: last, and with no choice."""
    return event(_chunk([], usage=usage(num_tokens)))


def chat_pieces(words: Sequence[str] = WORDS, *, with_usage: bool = False) -> tuple[bytes, ...]:
    """A whole streamed answer, one event in each piece: role, words, finish reason, usage if requested, end."""
    last = (usage_chunk(len(words)),) if with_usage else ()
    spoken = tuple(chunk({"content": word}) for word in words)
    return (chunk({"role": "assistant", "content": ""}), *spoken, chunk({}, "stop"), *last, DONE)


def chat_body(words: Sequence[str] = WORDS, *, finish_reason: str = "stop", **message: Any) -> bytes:
    """A whole chat answer that is not streamed; `message` adds fields to its message."""
    message = {"role": "assistant", "content": "".join(words), **message}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return _json(
        {
            "id": "chatcmpl-selftest",
            "object": "chat.completion",
            "created": _CREATED,
            "model": "selftest",
            "choices": [choice],
            "usage": usage(len(words)),
        }
    )


def embeddings_body(request: dict[str, Any], vectors: Sequence[Sequence[float]] | None = None) -> bytes:
    """A vector for each input, in the requested encoding."""
    given = request.get("input", "")
    inputs = [given] if isinstance(given, str) else given
    rows = []
    for index, text in enumerate(inputs):
        vector = vectors[index] if vectors else _vector(str(text), int(request.get("dimensions") or _DIMENSIONS))
        packed = struct.pack(f"<{len(vector)}f", *vector)
        is_packed = request.get("encoding_format") == "base64"
        value = base64.b64encode(packed).decode() if is_packed else list(vector)
        rows.append({"object": "embedding", "index": index, "embedding": value})
    counted = {"prompt_tokens": len(rows), "total_tokens": len(rows)}
    return _json({"object": "list", "data": rows, "model": "selftest", "usage": counted})


def error_body(message: str, *, kind: str = "server_error", code: str | None = None) -> bytes:
    """An error in OpenAI's shape."""
    return _json({"error": {"message": message, "type": kind, "param": None, "code": code}})


def usage(num_tokens: int) -> dict[str, int]:
    """The usage of an answer of so many tokens."""
    return {"prompt_tokens": 7, "completion_tokens": num_tokens, "total_tokens": 7 + num_tokens}


def honest(path: str, body: bytes) -> tuple[bytes, ...] | bytes:
    """The correct answer to a request: pieces of a stream, or the bytes of an answer that is not streamed."""
    request = decoded(body)
    if path.endswith("/models"):
        return _json({"object": "list", "data": [{"id": "selftest", "object": "model", "owned_by": "selftest"}]})
    if path.endswith("/embeddings"):
        return embeddings_body(request)
    if path.endswith("/chat/completions"):
        if request.get("stream") is True:
            options = request.get("stream_options") or {}
            return chat_pieces(with_usage=options.get("include_usage") is True)
        return chat_body()
    return _json({"object": "selftest", "path": path})


def decoded(body: bytes) -> dict[str, Any]:
    """A JSON object; {} for everything else."""
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _vector(text: str, num_dimensions: int) -> list[float]:
    numbers = [float(1 + (sum(text.encode()) * (axis + 3)) % 17) for axis in range(num_dimensions)]
    length = sum(number * number for number in numbers) ** 0.5
    return [number / length for number in numbers]


def _chunk(choices: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-selftest",
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": "selftest",
        "choices": choices,
        **more,
    }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

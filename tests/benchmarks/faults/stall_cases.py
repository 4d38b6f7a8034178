"""Requests and answers made to keep who reads them busy for long, or to take much memory. Each below 64 MiB."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from tests.support.http_client import request_bytes
from tests.support.servers.openai_server import Behaviour

_CHAT = "/v1/chat/completions"
_MESSAGE = {"role": "user", "content": "hello"}


def _chat(model: str, **more: Any) -> bytes:
    body = {"model": model, "messages": [_MESSAGE], **more}
    return request_bytes(_CHAT, json.dumps(body, separators=(",", ":")).encode())


def _spliced(model: str, value: bytes) -> bytes:
    """A chat with a member `x` of that text."""
    head = json.dumps({"model": model, "messages": [_MESSAGE]}).encode()
    return request_bytes(_CHAT, head[:-1] + b',"x":' + value + b"}")


def _keys(number: int) -> bytes:
    return b"{" + b",".join(b'"%x":0' % index for index in range(number)) + b"}"


def _top_keys(model: str) -> bytes:
    head = json.dumps({"model": model, "messages": [_MESSAGE]}).encode()
    return request_bytes(_CHAT, head[:-1] + b"," + _keys(2_000_000)[1:])


def _headers(model: str) -> bytes:
    head, _, body = _chat(model).partition(b"\r\n\r\n")
    return head + b"".join(b"\r\nx-%x: %d" % (index, index) for index in range(4000)) + b"\r\n\r\n" + body


def _schema(width: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(width)}}


REQUESTS: dict[str, Callable[[str], bytes]] = {
    "small": _chat,
    "2 million keys": lambda model: _spliced(model, _keys(2_000_000)),
    "2 million keys at the top": _top_keys,
    "10 million numbers": lambda model: _spliced(model, b"[" + b"1," * 9_999_999 + b"1]"),
    "10 million empty strings": lambda model: _spliced(model, b"[" + b'"",' * 9_999_999 + b'""]'),
    "10 million empty lists": lambda model: _spliced(model, b"[" + b"[]," * 9_999_999 + b"[]]"),
    "3 million floats": lambda model: _spliced(model, b"[" + b"1.23456789012e-3," * 2_999_999 + b"1]"),
    "a number of 4 million digits": lambda model: _spliced(model, b"1" * 4_000_000),
    "a number of 4,000 digits, 4,000 times": lambda model: _spliced(model, b"[" + (b"1" * 4000 + b",") * 4000 + b"1]"),
    "20 MB of brackets": lambda model: _spliced(model, b"[" * 10_000_000 + b"]" * 10_000_000),
    "lists 150 deep, 30,000 times": lambda model: _spliced(
        model, b"[" + (b"[" * 150 + b"]" * 150 + b",") * 30_000 + b"1]"
    ),
    "30 MB of escapes": lambda model: _spliced(model, b'"' + b"\\u00e9" * 5_000_000 + b'"'),
    "60 MB of text": lambda model: _chat(model, messages=[{"role": "user", "content": "word " * 12_000_000}]),
    "20 MB of one word": lambda model: _chat(model, messages=[{"role": "user", "content": "a" * 20_000_000}]),
    "100,000 messages": lambda model: _chat(model, messages=[_MESSAGE] * 100_000),
    "1 million messages": lambda model: _chat(model, messages=[_MESSAGE] * 1_000_000),
    "1 million parts": lambda model: _chat(
        model, messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 1_000_000}]
    ),
    "5,000 tools": lambda model: _chat(
        model,
        tools=[
            {"type": "function", "function": {"name": f"f{index}", "parameters": _schema(20)}} for index in range(5000)
        ],
    ),
    "40 MB of images": lambda model: _chat(
        model,
        messages=[
            {
                "role": "user",
                "content": [
                    {
                        "type": "image_url",
                        "image_url": {"url": "data:image/png;base64," + b64encode(b"\0" * n).decode()},
                    }
                    for n in (15_000_000, 15_000_000)
                ],
            }
        ],
    ),
    "1 million stops": lambda model: _chat(model, stop=["a"] * 1_000_000),
    "1 million metadata": lambda model: _chat(model, metadata={f"k{index}": "v" for index in range(1_000_000)}),
    "1 million biases": lambda model: _chat(model, logit_bias={str(index): 1 for index in range(1_000_000)}),
    "100,000 inputs": lambda model: request_bytes(
        "/v1/embeddings", json.dumps({"model": model, "input": ["a few words"] * 100_000}).encode()
    ),
    "1 million inputs": lambda model: request_bytes(
        "/v1/embeddings", json.dumps({"model": model, "input": ["a"] * 1_000_000}).encode()
    ),
    "10 million tokens": lambda model: request_bytes(
        "/v1/completions", json.dumps({"model": model, "prompt": [1] * 10_000_000}, separators=(",", ":")).encode()
    ),
    "1 million items": lambda model: request_bytes(
        "/v1/responses", json.dumps({"model": model, "input": [_MESSAGE] * 1_000_000}).encode()
    ),
    "4,000 headers": _headers,
    "passed: 2 million keys": lambda model: request_bytes(
        "/v1/rerank", json.dumps({"model": model}).encode()[:-1] + b',"x":' + _keys(2_000_000) + b"}"
    ),
    "passed: 1 million documents": lambda model: request_bytes(
        "/v1/rerank", json.dumps({"model": model, "query": "a", "documents": ["a"] * 1_000_000}).encode()
    ),
    "a form of 100,000 parts": lambda model: _form(model, 100_000),
    "a form of 60 MB": lambda model: _form(model, 1, b"a" * 60_000_000),
    "a form of 60 MB of near-boundaries": lambda model: _form(model, 1, b"\r\n--bounx" * 6_000_000),
}


def _form(model: str, number: int, value: bytes = b"a") -> bytes:
    parts = [b'--bound\r\ncontent-disposition: form-data; name="model"\r\n\r\n' + model.encode() + b"\r\n"]
    parts += [
        b'--bound\r\ncontent-disposition: form-data; name="f%d"\r\n\r\n' % n + value + b"\r\n" for n in range(number)
    ]
    body = b"".join(parts) + b"--bound--\r\n"
    head = (
        "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: gateway\r\ncontent-type: multipart/form-data; boundary=bound"
        f"\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _chunk(**more: Any) -> bytes:
    return json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **more}).encode()


def _event(*pieces: bytes) -> tuple[bytes, ...]:
    first = b"data: " + _chunk(choices=[{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]) + b"\n\n"
    last = b"data: " + _chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]) + b"\n\ndata: [DONE]\n\n"
    return (first, *pieces, last)


def _many_events(number: int) -> Behaviour:
    event = b"data: " + _chunk(choices=[{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]) + b"\n\n"
    return Behaviour(events=_event(event * number))


def _whole(value: bytes) -> Behaviour:
    head = _chunk(choices=[{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}])
    return Behaviour(
        body=head[:-1] + b',"x":' + value + b',"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
    )


ANSWERS: dict[str, Callable[[], Behaviour]] = {
    "4 million members": lambda: _whole(_keys(4_000_000)),
    "20 million numbers": lambda: _whole(b"[" + b"1," * 19_999_999 + b"1]"),
    "50 MB of text": lambda: _whole(b'"' + b"a" * 50_000_000 + b'"'),
    "50 MB of escapes": lambda: _whole(b'"' + b"\\u00e9" * 8_000_000 + b'"'),
    "1 million choices": lambda: Behaviour(
        body=_chunk(
            choices=[{"index": n, "message": {"role": "assistant", "content": "a"}} for n in range(500_000)], usage=None
        )
    ),
    "event of 50 MB": lambda: Behaviour(
        events=_event(b"data: " + _chunk(choices=[{"index": 0, "delta": {"content": "a" * 50_000_000}}]) + b"\n\n")
    ),
    "event of 2 million members": lambda: Behaviour(
        events=_event(b"data: " + _chunk(choices=[])[:-1] + b',"x":' + _keys(2_000_000) + b"}\n\n")
    ),
    "event without an end, 50 MB": lambda: Behaviour(events=_event(b"data: " + b"a" * 50_000_000)),
    "events: 250,000 at once": lambda: _many_events(250_000),
}

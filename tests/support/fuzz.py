"""Requests, answers and streams that nobody should send, made from a seed, and what must become of them."""

from __future__ import annotations

import codecs
import itertools
import json
import random
import re
from typing import Any

import msgspec

from tests.support.faults import CHAT

_ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 10**30, "", "x", "\0", "🙂", "a" * 5000, [], {}, [None], [[]], {"": ""},
    [1, "2"], {"role": "user"}, "true", "NaN", [{}] * 50, -(2**63), 2**64,
)  # fmt: skip
_ODD_BYTES = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" * 400, b'"\\ud800"', b'"\xff"', b'"\xc3"', b"'x'", b"undefined",
    b"[" * 300, b'{"a":' * 300, b"0x10", b"01", b"+1", b"--1", b'"\n"', b'"\x00"', b"/* */", b",", b"\xef\xbb\xbf",
    b"nul", b'{"a":1,"a":2}', b'"\\u00"', b"1.", b".5", b"\xa0",
)  # fmt: skip
_KEYS = (
    "model", "messages", "stream", "stream_options", "user", "n", "temperature", "tools", "input", "prompt", "seed",
    "stop", "max_tokens", "metadata", "response_format", "unknown_field", "logit_bias", "encoding_format", "dimensions",
)  # fmt: skip
_BASES: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"model": "m", "messages": [{"role": "user", "content": "hello"}], "temperature": 0.5}),
    (CHAT, {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hé"}]}], "stream": True}),
    (CHAT, {"model": "m", "messages": [{"role": "system", "content": "s"}], "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"model": "m", "prompt": "once", "n": 1, "max_tokens": 5}),
    ("/v1/embeddings", {"model": "m", "input": ["a", "b"], "encoding_format": "float"}),
    ("/v1/responses", {"model": "m", "input": "hello", "metadata": {"k": "v"}}),
)


def valid_request(random_: random.Random) -> tuple[str, bytes]:
    """A path and a body that must be passed on byte for byte, with fields that nobody knows."""
    path, base = random_.choice(_BASES)
    body: dict[str, Any] = {**base, "x_unknown": random_.choice(_ODD_VALUES[:20]), "chat_template_kwargs": {"a": None}}
    names = list(body)
    random_.shuffle(names)
    text = json.dumps({name: body[name] for name in names}, ensure_ascii=random_.random() < 0.5)
    return path, text.replace(": ", random_.choice([":", ": ", " :\t"])).encode()


def bad_request(random_: random.Random) -> tuple[str, bytes]:
    """A path and a body that is probably bad; `must_be_refused` knows."""
    path, base = random_.choice(_BASES)
    body = json.loads(json.dumps(base))
    raw = json.dumps(body).encode()
    for _ in range(random_.choice([1, 1, 2, 5])):
        how = random_.randrange(10)
        at = random_.randrange(len(raw) + 1)
        if how == 0:
            raw = raw[:at] + random_.choice(_ODD_BYTES) + raw[at:]
        elif how == 1:
            raw = raw[:at]
        elif how == 2:
            raw = raw[:at] + bytes([random_.randrange(256)]) + raw[at + 1 :]
        elif how == 3:
            raw = raw[:at] + raw[at + random_.randrange(20) :]
        elif how == 4:
            raw = raw.replace(
                random_.choice([b'"m"', b'"hello"', b"0.5", b"[", b'"user"']), random_.choice(_ODD_BYTES), 1
            )
        elif how == 5:
            body.pop(random_.choice(list(body)), None) if body else None
            raw = json.dumps(body).encode()
        elif how == 6:
            body[random_.choice(_KEYS)] = random_.choice(_ODD_VALUES)
            raw = json.dumps(body).encode()
        elif how == 7:
            # In a field that nobody checks the type of.
            raw = raw[:-1] + b', "x": ' + random_.choice(_ODD_BYTES) + b"}"
        elif how == 8:
            raw = raw[:-1] + b", " + json.dumps({random_.choice(_KEYS): "twice"}).encode()[1:]
        else:
            raw = json.dumps(random_.choice([*_ODD_VALUES, body])).encode(random_.choice(["utf-8", "utf-16", "utf-32"]))
    return path, raw


def must_be_refused(path: str, raw: bytes) -> bool:
    """Whether this body may not be passed on, by an independent and lenient reading of the rules."""
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_unique)
        json.dumps(body, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return True
    if not isinstance(body, dict):
        return True
    model = body.get("model")
    if not (isinstance(model, str) and model) and (path != "/v1/responses" or "model" in body):
        return True
    if path == "/v1/embeddings":
        return not isinstance(body.get("input"), (str, list))
    if path != CHAT:
        return False
    messages = body.get("messages")
    return not (isinstance(messages, list) and messages and all(_is_message(message) for message in messages))


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a duplicate key")
    return dict(pairs)


def mangled(raw: bytes, random_: random.Random) -> bytes:
    """The same bytes with a few of them changed, left out or said twice."""
    data = bytearray(raw)
    for _ in range(random_.randrange(1, 5)):
        at = random_.randrange(len(data) + 1)
        how = random_.randrange(4)
        if how == 0:
            data[at:at] = bytes([random_.randrange(256)])
        elif how == 1:
            del data[at : at + random_.randrange(1, 8)]
        elif how == 2:
            data[at : at + 1] = random_.choice([b"\0", b"\r", b"\n", b"\r\n\r\n", b":", b" ", b"\xff", b"\t"])
        else:
            data[at:at] = data[at : at + random_.randrange(1, 30)]
    return bytes(data)


_TEXTS = ('"usage": {"a": 1}', "日本語", "🙂", "data: [DONE]", "\n\n", "plain word", '"error"', "é" * 300)
_ODD_LINES = (b"garbage\n\n", b"data\n\n", b"data: {oops\n\n", b"\xff\xfe\r\n\r\n", b"\n", b": \r\r", b"retry: 5\n\n")
_USAGE = {"usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}


class _Writer:
    """Writes the chunks of one stream in the manner of one server."""

    def __init__(self, random_: random.Random) -> None:
        self.out = [codecs.BOM_UTF8 if random_.random() < 0.05 else b""]
        self.line_end = random_.choice([b"\n", b"\n", b"\r\n", b"\r"])
        self._random = random_
        self._sends_comments = random_.random() < 0.3
        self._nulls: dict[str, Any] = {"usage": None, "error": None} if random_.random() < 0.4 else {}

    def chunk(self, choices: list[Any], **more: Any) -> None:
        """One event, in one of the ways in which it may be written."""
        end = self.line_end
        chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", **self._nulls}
        chunk |= {"choices": choices, **more}
        data = msgspec.json.encode(chunk) if self._random.random() < 0.5 else json.dumps(chunk).encode()
        if b", " in data and self._random.random() < 0.1:
            data = data.replace(b", ", b"," + end + b"data: ", 1)
        name = self._random.choice(
            [b"data: ", b"data:", b"event: message" + end + b"data: ", b"id: 7" + end + b"data: "]
        )
        self.out.append((b": ping" + end * 2 if self._sends_comments else b"") + name + data + end * 2)

    def text(self, content: str, finish_reason: str | None = None, **more: Any) -> None:
        """A chunk with some of the answer."""
        self.chunk([{"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}], **more)


def stream(random_: random.Random, *, is_odd: bool, has_long_event: bool) -> bytes:
    """A whole chat stream as some server might write it. `is_odd`: line ends mixed and lines that are no events."""
    writer = _Writer(random_)
    writer.text("")
    for _ in range(random_.randrange(8)):
        writer.text(random_.choice(_TEXTS))
        if is_odd:
            writer.out.append(random_.choice(_ODD_LINES))
    if has_long_event:
        writer.text("é" * 2**19)
    is_merged = random_.random() < 0.2
    writer.text("", "stop", **(_USAGE if is_merged else {}))
    if not is_merged and random_.random() < 0.9:
        writer.chunk([], **_USAGE)
    if is_odd or random_.random() < 0.9:
        writer.out.append(random_.choice([b"data: [DONE]", b"data:[DONE]"]) + writer.line_end * 2)
    return b"".join(writer.out)


def without_usage_chunk(data: bytes) -> bytes:
    """What a client gets of such a stream (not an odd one) if it did not ask for usage."""
    events = re.split(rb"(?<=\n\n)|(?<=\r\n\r\n)|(?<=\r\r)", data)
    return b"".join(event for event in events if not _is_usage_chunk(event))


def _is_usage_chunk(event: bytes) -> bool:
    lines = re.split(rb"\r\n|\n|\r", event.removeprefix(codecs.BOM_UTF8))
    data = b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))
    try:
        chunk = json.loads(data)
    except ValueError:
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


def split(data: bytes, random_: random.Random) -> tuple[bytes, ...]:
    """The bytes in pieces, cut anywhere: between events, inside of characters and line ends, byte by byte."""
    how = random_.randrange(4)
    if how == 0 or len(data) > 100_000:
        number = random_.randrange(1, 6)
    elif how == 1:
        number = random_.randrange(1, 40)
    elif how == 2:
        marks = [match.end() for match in re.finditer(rb"[\r\n]", data)]
        return _cut(data, random_.sample(marks, min(len(marks), 30)))
    else:
        at = random_.randrange(len(data))
        return _cut(data, list(range(at, min(len(data), at + 60))))
    return _cut(data, [random_.randrange(len(data)) for _ in range(number)])


def _cut(data: bytes, places: list[int]) -> tuple[bytes, ...]:
    edges = [0, *sorted(set(places) - {0, len(data)}), len(data)]
    return tuple(data[begin:end] for begin, end in itertools.pairwise(edges))

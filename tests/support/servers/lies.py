"""Answers of upstreams in which anything may stand anywhere: for whoever has to survive them. Made of a seed.

A lie is an answer as some server might give it, with some of its fields replaced by values of every type and size,
and how much of it may be counted.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from backends.sse import DONE_EVENT, encode_event
from tests.support.servers.openai_server import Behaviour, Framing

Raw = msgspec.Raw

ODD_NUMBERS = (
    *(b"-1", b"0", b"1", b"7.5", b"12.0", b"-0", b"1e3", b"1e999", b"-1e999", b"1e-400", b"4294967296"),
    *(b"9007199254740993", b"18446744073709551616", b"1000000000", b"1000000001"),
    *(b"9" * 400, b"-" + b"9" * 400, b"9" * 5000),
)
ODD_VALUES = (
    *(b"null", b"true", b"false", b'""', b'"7"', b'"text"', b"[]", b"{}", b"[[]]", b'[null,-1,"x"]', b'{"":null}'),
    *(b'{"error":1}', b'{"prompt_tokens":-1}', b'"\\u0000"', b'"\\n\\ndata: x"', b'"%b"' % (b"x" * 5000)),
)
UNREADABLE = (
    *(b"[" * 300 + b"]" * 300, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 2000 + b"1" + b"}" * 2000),
    *(b'"\\ud800"', b'"\xff\xfe"', b"NaN", b"-Infinity", b"'x'", b"01", b"", b"tru"),
)
"""Not JSON, or too deep for most readers: whether an answer with one of these is read at all is nobody's promise."""

STATUSES = (
    200,
    200,
    200,
    201,
    299,
    204,
    300,
    302,
    304,
    400,
    401,
    403,
    404,
    408,
    413,
    422,
    429,
    500,
    502,
    503,
    529,
    599,
)
ODD_STATUSES = (b"000", b"099", b"100", b"101", b"199", b"600", b"999", b"-1", b"2", b"20000", b"abc", b"")
WAITS = (
    *(b"0", b"1", b"-5", b"1e9", b"1000000000", b"9" * 400, b"inf", b"nan", b"soon", b"", b"1.5", b"0x10", b"\xff"),
    *(b"Fri, 31 Dec 9999 23:59:59 GMT", b"Fri, 99 Foo 2026 99:99:99 GMT", b"Thu, 01 Jan 1970 00:00:00 GMT"),
)
HEADERS = (b"retry-after", b"retry-after-ms", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-tokens")
TYPES = (b"application/json", b"application/json", b"text/plain", b"text/html", b"", b"\xff", b"text/event-stream")

_INTEGER = re.compile(rb"-?\d+")
_MAX_COUNT = 10**9


@dataclass(frozen=True, slots=True)
class Tokens:
    """Prompt, completion and cached tokens."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.prompt + other.prompt, self.completion + other.completion, self.cached + other.cached)


@dataclass(slots=True)
class Lie:
    """One answer. `tokens`: what a whole one lets count, where `is_exact`; at most that in any other case."""

    operation: str
    path: str
    body: dict[str, Any]
    behaviour: Behaviour
    tokens: Tokens = field(default_factory=Tokens)
    is_exact: bool = False


def lie(number: int, random_: random.Random) -> Lie:
    """An answer, with the request it belongs to; `number` is in its model's name."""
    kind = random_.choice(list(_KINDS))
    path, more, make = _KINDS[kind]
    model = f"{'claude' if kind.startswith('messages') else 'm'}/{number}"
    is_stream = kind.endswith("stream")
    body: dict[str, Any] = {"model": model, **more}
    if is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if kind.startswith("responses"):
        body.pop("stream_options", None)
    teller = _Teller(random_)
    events = make(teller)
    behaviour, is_whole = _behaviour(events, random_, is_stream=is_stream)
    tokens = teller.tokens()
    return Lie(kind, path, body, behaviour, tokens, is_exact=is_whole and teller.is_readable)


class _Teller:
    """Makes one answer: each value may be replaced, and what the usage then says is noted."""

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        # How much of it is lies: most answers have one or two.
        self._share = random_.choice([0.0, 0.03, 0.03, 0.1, 0.5])
        self.is_readable = True
        self._counts: dict[str, int] = {}
        self._tells_output = False

    def value(self, honest: object) -> object:
        """That, or anything else."""
        if self._random.random() >= self._share:
            return honest
        return self._odd()

    def field(self, name: str, honest: object) -> dict[str, object]:
        """A field of an object, which may also be missing."""
        if self._share and self._random.random() < self._share / 4:
            return {}
        return {name: self.value(honest)}

    def object_of(self, **fields: object) -> dict[str, object]:
        """An object with these fields, each perhaps a lie."""
        made: dict[str, object] = {}
        for name, honest in fields.items():
            made |= self.field(name, honest)
        if self._share and self._random.random() < self._share / 3:
            name = self._random.choice(["error", "detail", "code", "object", "status", "type", "x", "id"])
            if name not in made:
                made[name] = self._odd()
        return made

    def usage(self, names: Mapping[str, tuple[str, ...]], nested: str | None) -> object:
        """A usage object. `names`: what is counted to its fields; the cached tokens are in `nested`, if not beside."""
        made: dict[str, object] = {}
        self._counts = dict.fromkeys(self._counts, 0)
        self._tells_output = False
        details: dict[str, object] = {}
        for kind, fields in names.items():
            for name in fields:
                raw = self._number()
                into = details if nested is not None and kind == "cached" else made
                if raw is not None:
                    into[name] = Raw(raw)
                    number = believed(raw)
                    self._counts[name] = number or 0
                    self._tells_output |= kind == "completion" and number is not None
        if nested is not None:
            if self._random.random() < self._share:
                made[nested] = self._odd()
                for name in details:
                    self._counts[name] = 0
            else:
                made[nested] = details
        if self._random.random() < self._share:
            self._counts = dict.fromkeys(self._counts, 0)
            self._tells_output = False
            return self._odd_shape()
        return made

    def tokens(self) -> Tokens:
        """What of the last usage counts."""
        counts = self._counts
        cached = counts.get("cached_tokens", 0) + counts.get("cache_read_input_tokens", 0)
        prompt = counts.get("prompt_tokens") or counts.get("input_tokens") or 0
        if "cache_read_input_tokens" in counts or "cache_creation_input_tokens" in counts:
            prompt += cached + counts.get("cache_creation_input_tokens", 0)
        completion = counts.get("completion_tokens") or counts.get("output_tokens") or 0
        beyond = counts.get("total_tokens", 0) - prompt - completion
        if beyond > 0 and self._tells_output:
            # Of the prompt where that is not told, or where as much was kept beside it; else of what nobody sees.
            prompt, completion = (
                (prompt + beyond, completion) if not prompt or beyond == cached else (prompt, completion + beyond)
            )
        return Tokens(prompt, completion, min(cached, prompt))

    def _number(self) -> bytes | None:
        if self._random.random() >= max(self._share, 0.1):
            return b"%d" % self._random.randrange(0, 5000)
        if self._random.random() < 0.1:
            return None
        return self._random.choice([*ODD_NUMBERS, b"null", b"true", b'"7"', b"[]", b"{}"])

    def _odd(self) -> Raw:
        if self._random.random() < 0.1:
            self.is_readable = False
            return Raw(self._random.choice(UNREADABLE))
        return Raw(self._random.choice([*ODD_NUMBERS, *ODD_VALUES]))

    def _odd_shape(self) -> Raw:
        return Raw(self._random.choice([b"null", b"[]", b'"x"', b"7", b"{}", b"true", b"[{}]"]))


def believed(raw: bytes) -> int | None:
    """The number of tokens that JSON stands for, None where it is none: the rule, said once more."""
    number = int(raw) if _INTEGER.fullmatch(raw) and len(raw) < 20 else -1
    return number if 0 <= number <= _MAX_COUNT else None


_CHAT_USAGE = {
    "prompt": ("prompt_tokens",),
    "completion": ("completion_tokens",),
    "total": ("total_tokens",),
    "cached": ("cached_tokens",),
}
_RESPONSES_USAGE = {"prompt": ("input_tokens",), "completion": ("output_tokens",), "cached": ("cached_tokens",)}
_MESSAGES_USAGE = {
    "prompt": ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
    "completion": ("output_tokens",),
}
_WORDS = ("hi", "", "two words", 'a "quote" and \\', "é😀", "x" * 3000)


def _chat(teller: _Teller) -> list[object]:
    message = teller.object_of(role="assistant", content=_WORDS[2], refusal=None, tool_calls=None)
    choice = teller.object_of(index=0, message=message, logprobs=None, finish_reason="stop")
    head = teller.object_of(
        id="c1", object="chat.completion", created=1_700_000_000, model="m", system_fingerprint="fp"
    )
    return [{**head, **teller.field("choices", [choice]), "usage": teller.usage(_CHAT_USAGE, "prompt_tokens_details")}]


def _chat_stream(teller: _Teller) -> list[object]:
    def chunk(delta: dict[str, object], finish: str | None) -> dict[str, object]:
        choice = teller.object_of(index=0, delta=delta, logprobs=None, finish_reason=finish)
        head = teller.object_of(id="c1", object="chat.completion.chunk", created=1_700_000_000, model="m")
        return {**head, **teller.field("choices", [choice])}

    chunks: list[object] = [chunk(teller.object_of(role="assistant", content=""), None)]
    chunks += [chunk(teller.object_of(content=word), None) for word in _WORDS]
    chunks.append(chunk({}, "stop"))
    last = teller.object_of(id="c1", object="chat.completion.chunk", created=1_700_000_000, model="m")
    return [*chunks, {**last, "choices": [], "usage": teller.usage(_CHAT_USAGE, "prompt_tokens_details")}, DONE_EVENT]


def _completion(teller: _Teller) -> list[object]:
    choice = teller.object_of(index=0, text=_WORDS[2], logprobs=None, finish_reason="length")
    head = teller.object_of(id="c1", object="text_completion", created=1_700_000_000, model="m")
    return [{**head, **teller.field("choices", [choice]), "usage": teller.usage(_CHAT_USAGE, "prompt_tokens_details")}]


def _embedding(teller: _Teller) -> list[object]:
    item = teller.object_of(object="embedding", index=0, embedding=[0.5, -0.25])
    head = teller.object_of(object="list", model="m")
    usage = teller.usage({"prompt": ("prompt_tokens",), "total": ("total_tokens",)}, None)
    return [{**head, **teller.field("data", [item]), "usage": usage}]


def _responses(teller: _Teller) -> list[object]:
    text = teller.object_of(type="output_text", text=_WORDS[2], annotations=[])
    message = teller.object_of(id="m1", type="message", role="assistant", status="completed", content=[text])
    head = teller.object_of(id="r1", object="response", created_at=1_700_000_000, status="completed", model="m")
    usage = teller.usage(_RESPONSES_USAGE, "input_tokens_details")
    return [{**head, **teller.field("output", [message]), "usage": usage}]


def _responses_stream(teller: _Teller) -> list[object]:
    head = teller.object_of(id="r1", object="response", created_at=1_700_000_000, status="in_progress", model="m")
    events: list[object] = [{"type": "response.created", "response": head}]
    events += [teller.object_of(type="response.output_text.delta", item_id="m1", delta=word) for word in _WORDS]
    usage = teller.usage(_RESPONSES_USAGE, "input_tokens_details")
    return [*events, {"type": "response.completed", "response": {**head, "usage": usage}}]


def _messages(teller: _Teller) -> list[object]:
    block = teller.object_of(type="text", text=_WORDS[2])
    head = teller.object_of(id="m1", type="message", role="assistant", model="c", stop_reason="end_turn")
    return [{**head, **teller.field("content", [block]), "usage": teller.usage(_MESSAGES_USAGE, None)}]


def _messages_stream(teller: _Teller) -> list[object]:
    message = teller.object_of(id="m1", type="message", role="assistant", model="c", content=[])
    events: list[object] = [{"type": "message_start", "message": message}]
    events.append(teller.object_of(type="content_block_start", index=0, content_block={"type": "text", "text": ""}))
    for word in _WORDS:
        delta = teller.object_of(type="text_delta", text=word)
        events.append(teller.object_of(type="content_block_delta", index=0, delta=delta))
    events.append(teller.object_of(type="content_block_stop", index=0))
    usage = teller.usage(_MESSAGES_USAGE, None)
    end = teller.object_of(stop_reason="end_turn")
    return [*events, {"type": "message_delta", "delta": end, "usage": usage}, {"type": "message_stop"}]


def _error(teller: _Teller) -> list[object]:
    return [{"error": teller.value(teller.object_of(message="no", type="x", param=None, code="y"))}]


_MESSAGES = [{"role": "user", "content": "hi"}]
_CHAT_PATH = "/v1/chat/completions"
_KINDS: dict[str, tuple[str, dict[str, Any], Callable[[_Teller], list[object]]]] = {
    "chat": (_CHAT_PATH, {"messages": _MESSAGES}, _chat),
    "chat stream": (_CHAT_PATH, {"messages": _MESSAGES}, _chat_stream),
    "completion": ("/v1/completions", {"prompt": "hi"}, _completion),
    "embedding": ("/v1/embeddings", {"input": "hi"}, _embedding),
    "responses": ("/v1/responses", {"input": "hi"}, _responses),
    "responses stream": ("/v1/responses", {"input": "hi"}, _responses_stream),
    "messages": (_CHAT_PATH, {"messages": _MESSAGES}, _messages),
    "messages stream": (_CHAT_PATH, {"messages": _MESSAGES}, _messages_stream),
    "error": (_CHAT_PATH, {"messages": _MESSAGES}, _error),
}


def _behaviour(events: list[object], random_: random.Random, *, is_stream: bool) -> tuple[Behaviour, bool]:
    """How it is sent, and whether that is whole and called a success."""
    pieces = [
        event if isinstance(event, bytes) else encode_event(encoded) if is_stream else encoded
        for event in events
        for encoded in (event if isinstance(event, bytes) else _encoded(event),)
    ]
    data = b"".join(pieces)
    how = random_.random()
    if how < 0.12:
        return Behaviour(raw=_odd_answer(data, random_, is_stream=is_stream)), False
    if how < 0.24:
        cut = data[: random_.randrange(len(data) + 1)]
        if is_stream:
            framing: Framing = random_.choice(["chunked", "eof"])
            return Behaviour(events=(cut,), framing=framing), False
        return Behaviour(body=cut), False
    if is_stream:
        return Behaviour(events=tuple(_split(data, random_))), True
    status = 200 if random_.random() < 0.7 else random_.choice(STATUSES)
    headers = tuple(
        (name.decode(), random_.choice(WAITS).decode("latin-1")) for name in HEADERS if random_.random() < 0.2
    )
    # A status without a body, and one for a type that says it is a stream, are no ordinary answers.
    if status in (204, 304):
        return Behaviour(raw=b"HTTP/1.1 %d X\r\n\r\n" % status), False
    if status in (299, 529, 599):
        return Behaviour(raw=_head(b"%d" % status, [], data)), status == 299
    return Behaviour(status=status, headers=headers, body=data), status < 300


def _encoded(event: object) -> bytes:
    # What is no JSON stands there as it is.
    return msgspec.json.encode(event)


def _head(status: bytes, fields: list[bytes], data: bytes) -> bytes:
    lines = [b"HTTP/1.1 %b Odd" % status, *fields, b"content-length: %d" % len(data)]
    return b"\r\n".join((*lines, b"", data))


def _odd_answer(data: bytes, random_: random.Random, *, is_stream: bool) -> bytes:
    """Heads that are none, or of something else."""
    status = random_.choice([*ODD_STATUSES, *(b"%d" % status for status in STATUSES)])
    content_type = b"text/event-stream" if is_stream and random_.random() < 0.7 else random_.choice(TYPES)
    fields = [b"content-type: " + content_type]
    fields += [b"%b: %b" % (name, random_.choice(WAITS)) for name in HEADERS if random_.random() < 0.3]
    extra = (
        *(b"content-length: -1", b"content-length: 5", b"content-length: " + b"9" * 400, b"transfer-encoding: chunked"),
        *(b"x-request-id: " + b"r" * 20_000, b"request-id: \xff", b"connection: upgrade", b"content-encoding: gzip"),
        *(b"x-a: " + b"a" * 70_000, b"location: http://127.0.0.1:1/", b": none", b"bad name: x", b"set-cookie: a=b"),
    )
    fields += [field for field in extra if random_.random() < 0.08]
    whole = _head(status, fields, data)
    return whole[: random_.randrange(len(whole) + 1)] if random_.random() < 0.2 else whole


def _split(data: bytes, random_: random.Random) -> list[bytes]:
    places = sorted({random_.randrange(1, len(data)) for _ in range(random_.choice([0, 1, 3, 10]))})
    edges = [0, *places, len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]

"""What a hostile or broken client puts on its connection, made from a seed, and how answers are read strictly."""

from __future__ import annotations

import json
import random
import re
from typing import Literal, NamedTuple

from tests.support.fuzz import mangled
from tests.support.http_client import chat_body

Kind = Literal["stranger", "garbage", "caller"]
KINDS: dict[Kind, int] = {"stranger": 45, "garbage": 40, "caller": 15}
STOLEN = "stolen"
"""The case of every request without credentials: no upstream may ever see it."""
SENTINEL = b"GET /health HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n"

_TARGETS = (
    "/v1/chat/completions", "/v1/chat/completions", "//v1//chat/completions", "/chat/completions/", "/v1/responses",
    "/v1/models", "/v1/files/f-1", "/v1/cache/entries", "/v1/batches", "/v1/../v1/models", "/v1/%2e%2e/models", "/",
    "/v1/x/..;/models", "/v1/chat%2fcompletions", "/v1/%00", "http://gateway/v1/chat/completions", "http://gateway",
    "*", "//", "/v1/chat/completions?" + "q" * 3000, "/" + "a" * 60_000, "/health", "/ready", "gateway:80", "/v1/\xff",
    "/v1/chat/completions#x", "?", "/v1\\models", "/v1/realtime?model=m",
)  # fmt: skip
_METHODS = ("POST",) * 8 + ("GET", "GET", "OPTIONS", "PUT", "DELETE", "TRACE", "CONNECT", "PATCH", "PRI", "post", "X")
_VERSIONS = ("HTTP/1.1",) * 12 + ("HTTP/1.0", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/9.9", "HTTP/1.1 ", "")
_ODD_FIELDS = (
    "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA",
    "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAA\r\nsec-websocket-version: 13",
    "connection: upgrade\r\nupgrade: h2c, websocket", "upgrade: websocket", "connection: upgrade",
    "connection: authorization, host, content-length", "connection: close", "connection: keep-alive, close",
    "expect: 100-continue", "expect: 100-Continue, x", "expect: 200-ok", "expect:", "te: trailers",
    "trailer: authorization", "host: other", "host:", "host: \xff", "x-request-id: " + "a" * 300, "x_api_key: sk-wrong",
    "x-a: " + "b" * 20_000, "x-" + "n" * 5000 + ": v", "\r\n".join(f"x-{number}: v" for number in range(500)),
    "x-odd!#$%&'*+.^`|~: v", "x-latin: \xe9\xff", "x-tab:\t v \t", "x-empty:", "authorization: Bearer sk-wrong",
    "authorization:", "authorization: Bearer", "api-key: sk-wrong", "x-api-key: \xff", "cookie: a=b",
    "content-encoding: gzip", "content-type: text/plain", "accept-encoding: gzip", "origin: https://evil.example",
    "transfer-encoding: gzip, chunked", "transfer-encoding: chunked, chunked", "transfer-encoding: identity",
    "transfer-encoding:\tchunked", "content-length: 5", "content-length: 0005", "content-length: 1, 1",
    "content-length: 99999999999", "content-length: -1", "x-folded: a\r\n b", "x y: z", ": v", "x-nul: \0", "novalue",
    "access-control-request-method: POST\r\naccess-control-request-headers: a, b\r\norigin: https://x",
)  # fmt: skip
_HARMLESS_FIELDS = (
    "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA", "upgrade: h2c", "te: trailers",
    "connection: upgrade", "trailer: authorization", "x-api-key: sk-wrong", "x-odd!#$%&'*+.^`|~: v",
    "x-latin: \xe9\xff", "x-tab:\t v \t", "x-empty:", "\r\n".join(f"x-{number}: v" for number in range(500)),
    "x-a: " + "b" * 20_000,
)  # fmt: skip


class Attack(NamedTuple):
    """The bytes of one connection. `num_calls`: how many of them must be answered with 200."""

    kind: Kind
    data: bytes
    num_calls: int
    has_sentinel: bool


def attack(random_: random.Random, key: str) -> Attack:
    """One connection's bytes: requests of strangers, garbage made of such, or good calls in odd clothes."""
    kind = random_.choices(list(KINDS), list(KINDS.values()))[0]
    number = random_.choice([1, 1, 1, 2, 3, 20])
    if kind == "caller":
        calls = [_call(random_, key) for _ in range(number)]
        return Attack(kind, b"".join(calls) + SENTINEL, number, has_sentinel=True)
    # The true key stands where it does not count: behind a body. Garbage could move it, so there it is a wrong one.
    trailing = key if kind == "stranger" else "sk-wrong"
    data = b"".join(_request(random_, trailing) for _ in range(number))
    if kind == "garbage":
        for _ in range(random_.randrange(1, 4)):
            data = mangled(data, random_)
    return Attack(kind, data + (SENTINEL if random_.random() < 0.7 else b""), 0, has_sentinel=False)


def _request(random_: random.Random, trailing_key: str) -> bytes:
    method, target, version = random_.choice(_METHODS), random_.choice(_TARGETS), random_.choice(_VERSIONS)
    lines = [f"{method} {target} {version}", "host: gateway", f"x-case: {STOLEN}", "content-type: application/json"]
    lines += random_.sample(_ODD_FIELDS, random_.choice([0, 1, 1, 2, 4]))
    body = chat_body(stream=random_.random() < 0.3)
    return _framed(lines, body, f"authorization: Bearer {trailing_key}\r\nx-case: {STOLEN}\r\n", random_)


def _call(random_: random.Random, key: str) -> bytes:
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: gateway", f"authorization: Bearer {key}", "x-case: own"]
    lines += random_.sample(_HARMLESS_FIELDS, random_.choice([0, 1, 2]))
    return _framed(lines, chat_body(), "authorization: Bearer sk-wrong\r\nx-case: stolen\r\n", random_)


def _framed(lines: list[str], body: bytes, trailers: str, random_: random.Random) -> bytes:
    """Head and body, by length or in chunks with extensions, and trailers behind these."""
    if random_.random() < 0.5:
        return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("latin-1") + body
    out = ["\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode("latin-1")]
    at = 0
    while at < len(body):
        piece = body[at : at + random_.randrange(1, 60)]
        extension = random_.choice([b"", b"", b";a=b", b';a="b c"', b";" + b"e" * 3000])
        out.append(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece))
        at += len(piece)
    out.append(b"0\r\n" + (trailers.encode() if random_.random() < 0.7 else b"") + b"\r\n")
    return b"".join(out)


class Seen(NamedTuple):
    """One answer as it came."""

    status: int
    fields: dict[bytes, bytes]
    body: bytes
    is_whole: bool


_STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([^\r\n\0]*)\r\n")


def read_answers(data: bytes) -> list[Seen]:
    """The answers that stand in these bytes, the last one perhaps cut. Raises: ValueError where they are no HTTP."""
    answers: list[Seen] = []
    at = 0
    while at < len(data):
        if b"\r\n\r\n" not in data[at:]:
            if not b"HTTP/1.1 ".startswith(data[at : at + 9]) and not data.startswith(b"HTTP/1.1 ", at):
                raise ValueError(f"no answer: {data[at : at + 80]!r}")
            return answers
        start = _STATUS_LINE.match(data, at)
        if start is None:
            raise ValueError(f"no status line: {data[at : at + 80]!r}")
        at = start.end()
        fields: dict[bytes, bytes] = {}
        while not data.startswith(b"\r\n", at):
            field = _FIELD.match(data, at)
            if field is None:
                raise ValueError(f"no field: {data[at : at + 80]!r}")
            fields[field[1].lower()] = field[2]
            at = field.end()
        at += 2
        status = int(start[1])
        if status < 200 or status == 204:
            if status >= 200:
                answers.append(Seen(status, fields, b"", is_whole=True))
            continue
        if b"content-length" in fields:
            length = int(fields[b"content-length"])
            answers.append(Seen(status, fields, data[at : at + length], is_whole=at + length <= len(data)))
            at += length
        else:
            body, at, is_whole = _dechunked(data, at)
            answers.append(Seen(status, fields, body, is_whole=is_whole))
    return answers


def _dechunked(data: bytes, at: int) -> tuple[bytes, int, bool]:
    body = b""
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end], 16)
        piece = data[end + 2 : end + 2 + size]
        body += piece
        at = end + 4 + size
        if size == 0 or at > len(data):
            return body, at, size == 0 and at <= len(data)
    return body, len(data), False


def is_error_shape(body: bytes) -> bool:
    """Whether a body is an error exactly as OpenAI's are."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(error, dict) and error.keys() >= {"message", "type", "param", "code"}

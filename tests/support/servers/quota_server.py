"""An upstream on a real socket that keeps real quotas, by key: so many requests and tokens in any window, else 429.

It tells what is left as OpenAI does, keeps the beginnings of prompts by key as providers do, and remembers what it was
asked with which key.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from backends.errors import error_body

Fields = list[tuple[str, str]]


@dataclass(slots=True)
class Quota:
    """What one key may ask in any `window_s`; None for no limit."""

    requests: int | None = None
    tokens: int | None = None
    window_s: float = 60.0
    spent: deque[tuple[float, int]] = field(default_factory=deque)
    is_revoked: bool = False
    is_forbidden: bool = False

    def left(self, now: float) -> tuple[int, int]:
        """Requests and tokens; a billion where there is no limit."""
        while self.spent and self.spent[0][0] <= now - self.window_s:
            self.spent.popleft()
        requests = 10**9 if self.requests is None else self.requests - len(self.spent)
        tokens = 10**9 if self.tokens is None else self.tokens - sum(each for _, each in self.spent)
        return requests, tokens


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    key: str
    at: float
    beginning: str
    status: int


Tells = Callable[[Quota, float], Fields]


def as_openai(quota: Quota, now: float) -> Fields:
    """The fields of OpenAI."""
    requests, tokens = quota.left(now)
    whole_in_s = max(0.0, quota.spent[-1][0] + quota.window_s - now) if quota.spent else 0.0
    told: Fields = []
    for kind, limit, left in (("requests", quota.requests, requests), ("tokens", quota.tokens, tokens)):
        if limit is not None:
            told += [
                (f"x-ratelimit-limit-{kind}", str(limit)),
                (f"x-ratelimit-remaining-{kind}", str(max(0, left))),
                (f"x-ratelimit-reset-{kind}", f"{round(whole_in_s * 1000)}ms"),
            ]
    return told


def as_anthropic(quota: Quota, now: float) -> Fields:
    """The fields of Anthropic, with moments."""
    requests, _ = quota.left(now)
    whole_in_s = max(0.0, quota.spent[-1][0] + quota.window_s - now) if quota.spent else 0.0
    whole_at = datetime.fromtimestamp(time.time() + whole_in_s, UTC).isoformat(timespec="seconds")
    return [
        ("anthropic-ratelimit-requests-limit", str(quota.requests)),
        ("anthropic-ratelimit-requests-remaining", str(max(0, requests))),
        ("anthropic-ratelimit-requests-reset", whole_at.replace("+00:00", "Z")),
    ]


class QuotaServer:
    """Listens on a free port of the loopback interface while entered. Quotas are by key; who has none is unknown."""

    def __init__(self, quotas: dict[str, Quota], *, tells: Tells = as_openai, output_tokens: int = 10) -> None:
        self.quotas = quotas
        self.tells = tells
        self.asked: list[Asked] = []
        self.cached_tokens = 0
        self.retry_after: Callable[[float], Fields] = lambda wait_s: [("retry-after-ms", str(round(wait_s * 1000)))]
        self.refusal_body = error_body("slow down", type="requests", code="rate_limit_exceeded")
        self._output_tokens = output_tokens
        self._kept: set[tuple[str, str]] = set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def base_url(self) -> str:
        """Where the API begins."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    def statuses(self) -> Counter[int]:
        """How often each status was answered."""
        return Counter(each.status for each in self.asked)

    def answered(self) -> Counter[str]:
        """How many requests each key got an answer to."""
        return Counter(each.key for each in self.asked if each.status == 200)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**22)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = [line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:] if line]
                headers = {name.lower(): value for name, value in fields}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                is_anthropic = head.split(b" ", 2)[1].endswith(b"/messages")
                status, told, answer = self._answer(headers, body, is_anthropic=is_anthropic)
                told += [("content-type", "application/json"), ("content-length", str(len(answer)))]
                lines = "".join(f"{name}: {value}\r\n" for name, value in told)
                writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode("latin-1") + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, headers: dict[str, str], body: bytes, *, is_anthropic: bool) -> tuple[int, Fields, bytes]:
        now = time.monotonic()
        key = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
        asked: dict[str, Any] = msgspec.json.decode(body) if body else {}
        messages = asked.get("messages") or [{"content": ""}]
        beginning = str(messages[0]["content"])[:1024]
        tokens = len(body) // 4
        quota = self.quotas.get(key)
        status, told, answer = self._judge(quota, key, beginning, tokens, now, is_anthropic=is_anthropic)
        self.asked.append(Asked(key, now, beginning, status))
        return status, told, answer

    def _judge(
        self, quota: Quota | None, key: str, beginning: str, tokens: int, now: float, *, is_anthropic: bool
    ) -> tuple[int, Fields, bytes]:
        if quota is None or quota.is_revoked:
            return 401, [], error_body("no such key", type="invalid_request_error", code="invalid_api_key")
        if quota.is_forbidden:
            return 403, [], error_body("not for this key", type="invalid_request_error", code="forbidden")
        requests, left = quota.left(now)
        if requests < 1 or left < tokens + self._output_tokens:
            wait_s = quota.spent[0][0] + quota.window_s - now if quota.spent else quota.window_s
            return 429, [*self.tells(quota, now), *self.retry_after(wait_s)], self.refusal_body
        quota.spent.append((now, tokens + self._output_tokens))
        cached = tokens if (key, beginning) in self._kept and tokens >= 1024 else 0
        self._kept.add((key, beginning))
        self.cached_tokens += cached
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": self._output_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if is_anthropic:
            said = {
                "content": [{"type": "text", "text": "yes"}],
                "stop_reason": "end_turn",
                "type": "message",
                "id": "m",
            }
            counts = {"input_tokens": tokens, "output_tokens": self._output_tokens}
            whole = {**said, "role": "assistant", "model": "m", "usage": counts}
            return 200, self.tells(quota, now), msgspec.json.encode(whole)
        choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        answer = {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
        return 200, self.tells(quota, now), msgspec.json.encode(answer)

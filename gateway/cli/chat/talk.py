"""A conversation with a running gateway: each answer as it comes, and what it took."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from backends.errors import UpstreamGarbage
from backends.sse import EventBuffer, event_data

_TIMEOUT = httpx.Timeout(300.0, connect=5.0)
_LEDGER_WITHIN_S = 3
"""Rows reach the ledger about a second after a call's end."""


class ChatError(Exception):
    """The gateway does not answer, or not with an answer; the message says why."""


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


@dataclass(slots=True)
class Took:
    """What an answer took. None is "not told"; times are in seconds."""

    first_s: float | None = None
    total_s: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache: str | None = None
    request_id: str = ""
    finish: str | None = None

    @property
    def tokens_a_second(self) -> float | None:
        """After the first one; None where there is too little to tell."""
        if self.first_s is None or not self.output_tokens or self.output_tokens < 2:
            return None
        after_first_s = self.total_s - self.first_s
        return (self.output_tokens - 1) / after_first_s if after_first_s > 0.001 else None


class Talk:
    """Keeps what was said. `model` may be changed between questions."""

    def __init__(self, url: str, key: str | None, model: str | None, system: str | None) -> None:
        root = url.rstrip("/").removesuffix("/v1")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # A proxy of the environment would be asked for the gateway on this machine too.
        self._client = httpx.Client(base_url=f"{root}/v1/", headers=headers, timeout=_TIMEOUT, trust_env=False)
        self._begin = [{"role": "system", "content": system}] if system else []
        self._messages: list[dict[str, str]] = list(self._begin)
        self._has_ledger = True
        self.model = model or ""
        self.took = Took()
        """Of the newest answer."""

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def models(self) -> list[str]:
        """Those that the gateway lists. Raises: ChatError."""
        try:
            answer = self._client.get("models")
            _check(answer)
            return [str(model["id"]) for model in answer.json()["data"]]
        except httpx.HTTPError as error:
            raise ChatError(self._unreachable(error)) from error
        except (ValueError, LookupError, TypeError) as error:
            raise ChatError(f"{self._client.base_url}models lists no models; is this a gateway's address?") from error

    def forget(self) -> None:
        """Begin anew."""
        self._messages = list(self._begin)

    def ask(self, question: str) -> Generator[str, None, None]:
        """The pieces of the answer, which is kept if it comes to its end; then `took` is known. Raises: ChatError."""
        messages = [*self._messages, {"role": "user", "content": question}]
        body = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self.took = took = Took()
        pieces: list[str] = []
        began = time.perf_counter()
        try:
            with self._client.stream("POST", "chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    answer.read()
                _check(answer)
                took.cache = answer.headers.get("x-cache")
                took.request_id = answer.headers.get("x-request-id", "")
                for piece in self._pieces(answer):
                    if took.first_s is None:
                        took.first_s = time.perf_counter() - began
                    pieces.append(piece)
                    yield piece
        except httpx.HTTPError as error:
            raise ChatError(self._unreachable(error)) from error
        except (UpstreamGarbage, msgspec.DecodeError) as error:
            raise ChatError(f"the answer is no stream of a chat: {error}") from error
        finally:
            took.total_s = time.perf_counter() - began
        self._messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]

    def cost(self) -> str | None:
        """What the newest answer has cost, as the gateway's ledger has it: "$0.0012"; None where it does not say."""
        if not self._has_ledger or not self.took.request_id:
            return None
        address = f"calls/{quote(self.took.request_id, safe='')}"
        try:
            answer = self._client.get(address, params={"wait": _LEDGER_WITHIN_S})
            said = answer.json()
        except (httpx.HTTPError, ValueError):
            return None
        if answer.status_code == 200 and isinstance(said, dict) and said.get("object") == "call":
            cost = said.get("cost_usd")
            return "of unknown price" if cost is None else f"${cost}"
        # Otherwise there is no ledger, or no gateway of ours.
        self._has_ledger = answer.status_code == 404 and _code_of(said) == "not_found"
        return None

    def _pieces(self, answer: httpx.Response) -> Iterator[str]:
        events = EventBuffer()
        for part in answer.iter_bytes():
            for event in events.feed(part):
                data = event_data(event)
                if data is not None and data.strip() != b"[DONE]":
                    yield from self._read(msgspec.json.decode(data, type=_Chunk))

    def _read(self, chunk: _Chunk) -> Iterator[str]:
        if chunk.error is not None:
            raise ChatError(_message_of({"error": chunk.error}))
        if chunk.usage is not None:
            self.took.input_tokens = chunk.usage.prompt_tokens
            self.took.output_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices or ():
            self.took.finish = choice.finish_reason or self.took.finish
            if choice.delta is not None and choice.delta.content:
                yield choice.delta.content

    def _unreachable(self, error: httpx.HTTPError) -> str:
        return f"{self._client.base_url} does not answer: {error or type(error).__name__}"


def _check(answer: httpx.Response) -> None:
    if answer.status_code == 200:
        return
    try:
        message = _message_of(answer.json())
    except ValueError:
        message = answer.text[:300]
    hint = {401: "; name a key: --key env:NAME"}.get(answer.status_code, "")
    raise ChatError(f"the gateway answers with status {answer.status_code}: {message}{hint}")


def _message_of(said: Any) -> str:
    error = said.get("error") if isinstance(said, dict) else None
    return str(error.get("message")) if isinstance(error, dict) else str(said)[:300]


def _code_of(said: Any) -> object:
    error = said.get("error") if isinstance(said, dict) else None
    return error.get("code") if isinstance(error, dict) else None

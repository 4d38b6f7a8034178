"""A Messages API server for tests: real sockets, answers that the test chooses, requests kept for it to read.

Its wire format is held to the real client library by `tests/backends/http/anthropic/test_server.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec

KEY = "sk-ant-test"


def text_block(text: str) -> dict[str, Any]:
    """A text block of an answer."""
    return {"type": "text", "text": text, "citations": None}


def thinking_block(thinking: str) -> dict[str, Any]:
    """A thinking block of an answer."""
    return {"type": "thinking", "thinking": thinking, "signature": "c2ln"}


def tool_block(id: str, name: str, input: Mapping[str, Any]) -> dict[str, Any]:
    """A tool_use block of an answer."""
    return {"type": "tool_use", "id": id, "name": name, "input": input, "caller": {"type": "direct"}}


def make_message(*content: Mapping[str, Any], stop_reason: str = "end_turn", **usage: int) -> dict[str, Any]:
    """A whole answer; `usage` overrides the token counts."""
    counts = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-test-1",
        "content": list(content),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "stop_details": None,
        "usage": {**counts, **usage},
    }


def make_event(type: str, **fields: Any) -> bytes:
    """One event as the API writes it."""
    return b"event: %b\ndata: %b\n\n" % (type.encode(), msgspec.json.encode({"type": type, **fields}))


def message_events(message: Mapping[str, Any], num_chars: int = 4) -> list[bytes]:
    """The same answer as a stream, its texts in deltas of `num_chars` characters."""
    usage = message["usage"]
    start = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events = [make_event("message_start", message=start)]
    empty: dict[str, Any]
    for index, block in enumerate(message["content"]):
        match block["type"]:
            case "text":
                kind, field, text, empty = "text_delta", "text", block["text"], {"text": ""}
            case "thinking":
                kind, field, text, empty = (
                    "thinking_delta",
                    "thinking",
                    block["thinking"],
                    {"thinking": "", "signature": ""},
                )
            case _:
                encoded = msgspec.json.encode(block["input"]).decode() if block["input"] else ""
                kind, field, text, empty = "input_json_delta", "partial_json", encoded, {"input": {}}
        events.append(make_event("content_block_start", index=index, content_block={**block, **empty}))
        events.append(make_event("ping"))
        for begin in range(0, len(text) or 1, num_chars):
            delta = {"type": kind, field: text[begin : begin + num_chars]}
            events.append(make_event("content_block_delta", index=index, delta=delta))
        if block["type"] == "thinking":
            delta = {"type": "signature_delta", "signature": block["signature"]}
            events.append(make_event("content_block_delta", index=index, delta=delta))
        events.append(make_event("content_block_stop", index=index))
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append(make_event("message_delta", delta=delta, usage={"output_tokens": usage["output_tokens"]}))
    events.append(make_event("message_stop"))
    return events


def make_error(type: str, message: str) -> dict[str, Any]:
    """An error answer, and the fields of an error event."""
    return {"type": "error", "error": {"type": type, "message": message}, "request_id": "req_01"}


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    target: str
    headers: dict[str, str]
    body: Any

    @property
    def question(self) -> str:
        """The text the client said last."""
        text: str = self.body["messages"][-1]["content"][-1]["text"]
        return text


@dataclass
class Answer:
    """What the server sends: `body` whole, or `events` one by one, each after `delay_s`.

    `cut` aborts the connection instead of ending the answer; `hold` sends nothing more until the client leaves.
    Of a `body` that is not to end, none is sent.
    """

    status: int = 200
    body: bytes = b""
    events: list[bytes] | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] | None = None
    delay_s: float = 0.0
    cut: bool = False
    hold: bool = False


class AnthropicServer:
    """Listens on loopback while entered. `message` answers every call, in the asked form, unless `answer` is set."""

    def __init__(self) -> None:
        self.message = make_message(text_block("Hello there."))
        self.answer: Answer | Callable[[Request], Answer] | None = None
        self.requests: list[Request] = []
        self.num_aborted = 0
        """Clients that left in the middle of an answer."""
        self.client_left = asyncio.Event()
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.origin = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.base_url = f"{self.origin}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()

    async def refuse(self) -> None:
        """Stop listening and drop every connection: who connects now is refused."""
        self._server.close()
        for writer in self._connections:
            writer.transport.abort()
        await asyncio.gather(*self._connections.values())
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by its own task"
        self._connections[writer] = task
        try:
            while request := await _read_request(reader):
                self.requests.append(request)
                try:
                    can_go_on = await _send(self._choose(request), reader, writer)
                except ConnectionError:
                    self.num_aborted += 1
                    self.client_left.set()
                    break
                if not can_go_on:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            del self._connections[writer]
            writer.close()

    def _choose(self, request: Request) -> Answer:
        if request.target.partition("?")[0] != "/v1/messages":
            return _error(404, "not_found_error", "Not found")
        if KEY not in (
            request.headers.get("x-api-key"),
            request.headers.get("authorization", "").removeprefix("Bearer "),
        ):
            return _error(401, "authentication_error", "invalid x-api-key")
        if "anthropic-version" not in request.headers:
            return _error(400, "invalid_request_error", "anthropic-version: header is required")
        for field in ("model", "max_tokens", "messages"):
            if field not in request.body:
                return _error(400, "invalid_request_error", f"{field}: Field required")
        if self.answer is not None:
            return self.answer if isinstance(self.answer, Answer) else self.answer(request)
        if request.body.get("stream"):
            return Answer(events=message_events(self.message))
        return Answer(body=msgspec.json.encode(self.message))


async def _send(answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the connection can carry another request. Raises: ConnectionError where the client leaves meanwhile."""
    fields = {"request-id": "req_01", "content-type": answer.content_type, **(answer.headers or {})}
    if answer.events is None:
        fields["content-length"] = str(len(answer.body))
        pieces = [] if answer.cut or answer.hold else [answer.body]
    else:
        fields["content-type"] = "text/event-stream; charset=utf-8"
        fields["transfer-encoding"] = "chunked"
        pieces = [b"%x\r\n%b\r\n" % (len(event), event) for event in answer.events]
    lines = [f"HTTP/1.1 {answer.status} Answer", *(f"{name}: {value}" for name, value in fields.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    for piece in pieces:
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
            if reader.at_eof():
                raise ConnectionResetError("the client left")
        writer.write(piece)
        await writer.drain()
    if answer.hold:
        await reader.read(1)
        raise ConnectionResetError("the client left")
    if answer.cut:
        return False
    if answer.events is not None:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    return True


def _error(status: int, type: str, message: str) -> Answer:
    return Answer(status=status, body=msgspec.json.encode(make_error(type, message)))


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(target=first.split(" ")[1], headers=headers, body=msgspec.json.decode(raw) if raw else None)

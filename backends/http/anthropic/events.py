"""Turns the event stream of the Messages API into chat completion chunks, as the pieces arrive.

Events as documented at https://platform.claude.com/docs/en/build-with-claude/streaming.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import msgspec

from backends.charges.usage import Usage, most_told
from backends.errors import SlipstreamError, UpstreamCut, UpstreamError, UpstreamErrorEvent, UpstreamGarbage
from backends.http.anthropic.reply import Block, ErrorDetail, TokenCounts, finish_reason, read_counts, thought_of
from backends.http.anthropic.thinking import FIELD, Thought
from backends.http.wire import WireExchange
from backends.protocol import Facts
from backends.sse import DONE_EVENT, EventBuffer, encode_event, event_data
from backends.untrusted import MAX_TEXT_CHARS

_KNOWN_EVENTS = frozenset(
    {
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "error",
    }
)
_WORD = re.compile(r"[a-z_]{1,64}")
_DRAIN_S = 1.0
"""How long the end of a transport may take after the answer's own end."""


class _Start(msgspec.Struct):
    id: str
    model: str
    usage: msgspec.Raw = msgspec.Raw()


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str
    index: int = 0
    message: _Start | None = None
    content_block: Block | None = None
    delta: _Delta | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: ErrorDetail | None = None


class _ToolCall(msgspec.Struct):
    """A tool_use block that is open: its place among the tool calls, and its input if no delta brings one."""

    index: int
    input: bytes


class _AnyEvent(msgspec.Struct):
    type: str


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_any_event = msgspec.json.Decoder(_AnyEvent).decode
_encode = msgspec.json.encode


class EventTranslator:
    """One answer's events in, the bytes of chat completion chunks out. Writes usage and model into the facts."""

    __slots__ = (
        "_created",
        "_facts",
        "_has_finished",
        "_head",
        "_num_calls",
        "_num_thoughts",
        "_open_calls",
        "_open_thoughts",
        "_told",
        "_usage",
        "error",
        "is_complete",
    )

    def __init__(self, facts: Facts, created: int) -> None:
        self._facts = facts
        self._created = created
        self._head = b""
        self._usage = TokenCounts()
        self._told: Usage | None = None
        self._num_calls = 0
        self._open_calls: dict[int, _ToolCall] = {}
        self._num_thoughts = 0
        self._open_thoughts: dict[int, Thought] = {}
        self._has_finished = False
        self.is_complete = False
        self.error: ErrorDetail | None = None
        """What an error event said."""

    def translate(self, data: bytes) -> bytes:
        """The chunks that say what this event says; b"" where an OpenAI client need not know of it.

        Raises: UpstreamErrorEvent for an error event, UpstreamGarbage for one that cannot be, UpstreamCut where
        the stream ends without a stop reason.
        """
        try:
            event = _read_event(data.decode())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise UpstreamGarbage("the upstream sent an event that is not one of the Messages API") from None
        match event:
            case _Event(type="content_block_delta", delta=_Delta() as delta):
                return self._content(event.index, delta)
            case _Event(type="content_block_start", content_block=Block() as block):
                return self._block_start(event.index, block)
            case _Event(type="content_block_stop"):
                return self._block_stop(event.index)
            case _Event(type="message_start", message=_Start() as message):
                return self._message_start(message)
            case _Event(type="message_delta", delta=_Delta() as delta):
                return self._message_delta(delta, event.usage)
            case _Event(type="message_stop"):
                return self._message_stop()
            case _Event(type="error", error=ErrorDetail() as detail):
                self.error = detail
                raise UpstreamErrorEvent(f"the upstream broke its answer off with an error{_kind_of(detail)}")
        if event.type in _KNOWN_EVENTS:
            raise UpstreamGarbage(f"the upstream sent a {event.type} event without its content")
        # Pings, and events of later versions: clients are asked to pass over what they do not know.
        return b""

    def _message_start(self, message: _Start) -> bytes:
        self._head = b'{"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            _encode(message.id),
            self._created,
            _encode(message.model),
        )
        self._facts.upstream_model = message.model[:MAX_TEXT_CHARS]
        self._count(message.usage)
        self._facts.is_usage_partial = True
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def _content(self, block_index: int, delta: _Delta) -> bytes:
        thought = self._open_thoughts.get(block_index)
        if thought is not None:
            thought.add(delta.thinking, delta.signature)
        if delta.type == "text_delta" and delta.text:
            return self._chunk({"content": delta.text})
        if delta.type == "thinking_delta" and delta.thinking:
            return self._chunk({"reasoning_content": delta.thinking})
        if delta.type == "input_json_delta" and delta.partial_json and block_index in self._open_calls:
            call = self._open_calls[block_index]
            call.input = b""
            return self._arguments(call.index, delta.partial_json)
        return b""

    def _block_start(self, block_index: int, block: Block) -> bytes:
        if block.type != "tool_use":
            begun = self._content(block_index, _Delta(f"{block.type}_delta", text=block.text, thinking=block.thinking))
            if (thought := thought_of(block)) is not None:
                self._open_thoughts[block_index] = thought
            return begun
        call = _ToolCall(self._num_calls, bytes(block.input))
        self._open_calls[block_index] = call
        self._num_calls += 1
        function = {"name": block.name, "arguments": ""}
        return self._chunk(
            {"tool_calls": [{"index": call.index, "id": block.id, "type": "function", "function": function}]}
        )

    def _block_stop(self, block_index: int) -> bytes:
        """A tool without parameters gets no delta, but its arguments must be JSON all the same. What was thought is
        told again as a whole, with its signature: so it has to come back.
        """
        thought = self._open_thoughts.pop(block_index, None)
        if thought is not None and (block := thought.block()) is not None:
            # Clients put lists together by an index.
            index, self._num_thoughts = self._num_thoughts, self._num_thoughts + 1
            return self._chunk({FIELD: [{"index": index, **block}]})
        call = self._open_calls.pop(block_index, None)
        return self._arguments(call.index, call.input.decode()) if call is not None and call.input else b""

    def _message_delta(self, delta: _Delta, usage: msgspec.Raw) -> bytes:
        if self._count(usage).output_tokens is not None:
            self._facts.is_usage_partial = False
        if delta.stop_reason is None:
            return b""
        self._has_finished = True
        return self._chunk({}, finish_reason(delta.stop_reason))

    def _message_stop(self) -> bytes:
        if not self._has_finished:
            raise UpstreamCut("the upstream ended its answer without a stop reason")
        self.is_complete = True
        return encode_event(self._head + b'],"usage":%b}' % _encode(self._usage.as_openai())) + DONE_EVENT

    def _count(self, usage: msgspec.Raw) -> TokenCounts:
        """What that part of the answer tells, which is added to what was told before."""
        counts = read_counts(usage)
        self._usage.update(counts)
        told = self._usage.told()
        if told is not None:
            self._told = most_told(self._told, told)
        self._facts.usage = self._told
        return counts

    def _arguments(self, call_index: int, part: str) -> bytes:
        return self._chunk({"tool_calls": [{"index": call_index, "function": {"arguments": part}}]})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        if not self._head:
            raise UpstreamGarbage("the upstream began its answer without message_start")
        return encode_event(
            self._head
            + b'{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}]}' % (_encode(delta), _encode(finish))
        )


def _kind_of(detail: ErrorDetail) -> str:
    """The error's type where it is a word, and not whatever somebody put there."""
    return f" ({detail.type})" if _WORD.fullmatch(detail.type) else ""


def _read_event(text: str) -> _Event:
    """Raises: msgspec.DecodeError for what is no event, or a known one in a wrong shape."""
    try:
        return _decode_event(text)
    except msgspec.ValidationError:
        # A later version's event may use our field names for something else.
        kind = _decode_any_event(text).type
        if kind in _KNOWN_EVENTS:
            raise
        return _Event(type=kind)


class TranslatedSource:
    """A `Source` of chat completion chunks over an exchange of Messages events. Closing it closes the exchange."""

    __slots__ = ("_buffer", "_exchange", "_failure", "_translator")

    def __init__(self, exchange: WireExchange, translator: EventTranslator) -> None:
        self._exchange = exchange
        self._translator = translator
        self._buffer = EventBuffer()
        self._failure: SlipstreamError | None = None

    async def read(self) -> bytes:
        """The translation of what has arrived, at least one chunk; b"" at the end.

        Raises: UpstreamCut where the stream ends before the answer does, UpstreamErrorEvent, UpstreamGarbage, and
        what the exchange raises. What came before a failure is given first.
        """
        while not self._translator.is_complete:
            chunks = await self.read_piece()
            if chunks:
                return chunks
        # The answer is whole, so how the transport ends does not matter; reading on frees the connection.
        self._exchange.idle_s = _DRAIN_S
        with suppress(UpstreamError):
            await self._exchange.read()
        return b""

    async def read_piece(self) -> bytes:
        """The translation of the next piece alone; b"" where it brings no chunk, such as a ping.

        For an answer that is not complete. Raises: as `read`.
        """
        if self._failure is not None:
            raise self._failure
        piece = await self._exchange.read()
        if not piece:
            self._failure = UpstreamCut("the upstream ended its stream before the answer was complete")
            raise self._failure
        return self._translate(piece)

    async def aclose(self) -> None:
        """Close the exchange."""
        await self._exchange.aclose()

    def _translate(self, piece: bytes) -> bytes:
        chunks: list[bytes] = []
        try:
            for event in self._buffer.feed(piece):
                data = event_data(event)
                if data is not None and not self._translator.is_complete:
                    chunks.append(self._translator.translate(data))
        except UpstreamError as failure:
            self._failure = failure
        return b"".join(chunks)

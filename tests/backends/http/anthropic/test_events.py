"""The Messages event stream as chat completion chunks, however the bytes are cut and wherever the stream ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletionChunk

from backends.charges.usage import Usage
from backends.errors import SlipstreamError, StreamStalled, UpstreamCut, UpstreamErrorEvent, UpstreamGarbage
from backends.http.anthropic.events import EventTranslator, TranslatedSource
from backends.http.anthropic.reply import encode_completion, read_message
from backends.protocol import Facts, Headers
from backends.sse import DONE_EVENT
from backends.stream import Stream, StreamEnd
from tests.support.calls import event_values
from tests.support.servers.anthropic_server import (
    make_error,
    make_event,
    make_message,
    message_events,
    text_block,
    thinking_block,
    tool_block,
)

_CREATED = 1_700_000_000
_RICH = make_message(
    thinking_block("Let me think."),
    text_block("Grüße "),
    text_block("🎉"),
    tool_block("toolu_1", "weather", {"city": "Zürich", "days": [1, 2]}),
    tool_block("toolu_2", "now", {}),
    stop_reason="tool_use",
    cache_read_input_tokens=7,
)
_EVENTS = message_events(_RICH)


class Pieces:
    """An exchange in memory: gives its pieces one by one, then ends, by an error if it has one."""

    def __init__(self, pieces: Iterable[bytes], error: SlipstreamError | None = None) -> None:
        self.idle_s = 60.0
        self.status = 200
        self.headers: Headers = []
        self.is_closed = False
        self._pieces = [piece for piece in pieces if piece]
        self._error = error

    async def read(self) -> bytes:
        """The next piece."""
        if self._pieces:
            return self._pieces.pop(0)
        if self._error is not None:
            raise self._error
        return b""

    async def body(self, max_bytes: int) -> bytes:
        """All pieces."""
        return b"".join(self._pieces)

    async def aclose(self) -> None:
        """Note it."""
        self.is_closed = True


async def read_to_end(exchange: Pieces, facts: Facts | None = None) -> tuple[bytes, Stream, SlipstreamError | None]:
    """What a reader gets, the stream, and the error that ended it."""
    translator = EventTranslator(facts or Facts(), _CREATED)
    stream = Stream(TranslatedSource(exchange, translator))
    got = b""
    try:
        while piece := await stream.read():
            got += piece
    except SlipstreamError as error:
        return got, stream, error
    finally:
        await stream.aclose()
    return got, stream, None


def gather(chunks: Sequence[Any]) -> dict[str, Any]:
    """The message that these chunks add up to, and the finish reason, as an OpenAI client puts them together."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content", "")
            for part in delta.get("tool_calls", ()):
                if "id" in part:
                    assert part["index"] == len(message["tool_calls"])
                    message["tool_calls"].append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
                message["tool_calls"][part["index"]]["arguments"] += part["function"]["arguments"]
            if choice["finish_reason"] is not None:
                finish.append(choice["finish_reason"])
    return {**message, "finish": finish}


async def test_stream_adds_up_to_the_whole_answer() -> None:
    """Streamed and whole, the same answer says the same, with the same usage."""
    whole = msgspec.json.decode(encode_completion(read_message("claude", msgspec.json.encode(_RICH)), _CREATED))

    got, stream, error = await read_to_end(Pieces(_EVENTS))

    assert error is None
    assert stream.end is StreamEnd.CLEAN
    assert got.endswith(DONE_EVENT)
    chunks = event_values(got)
    message = whole["choices"][0]["message"]
    assert gather(chunks) == {
        "content": message["content"],
        "reasoning_content": message["reasoning_content"],
        "tool_calls": [
            {"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]}
            for call in message["tool_calls"]
        ],
        "finish": ["tool_calls"],
    }
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]


async def test_stream_every_chunk_is_one_in_openais_library() -> None:
    """Each chunk passes the library's own type, and all are of one answer."""
    got, _, _ = await read_to_end(Pieces(_EVENTS))

    chunks = [ChatCompletionChunk.model_validate(value, strict=True) for value in event_values(got)]

    assert {(chunk.id, chunk.created, chunk.model) for chunk in chunks} == {("msg_01", _CREATED, "claude-test-1")}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(choice.index == 0 and choice.logprobs is None for chunk in chunks for choice in chunk.choices)


async def test_stream_first_chunk_of_a_tool_call_names_it() -> None:
    """Clients need index, id, type and name before the first piece of arguments."""
    got, _, _ = await read_to_end(Pieces(_EVENTS))

    parts = [
        part
        for chunk in event_values(got)
        for choice in chunk["choices"]
        for part in choice["delta"].get("tool_calls", ())
    ]

    begun = [part for part in parts if "id" in part]
    assert begun == [
        {"index": 0, "id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": ""}},
        {"index": 1, "id": "toolu_2", "type": "function", "function": {"name": "now", "arguments": ""}},
    ]
    assert parts[-1] == {"index": 1, "function": {"arguments": "{}"}}


async def test_stream_input_that_comes_with_the_start_is_kept() -> None:
    """Some servers send a tool's whole input at once and no delta."""
    events = [
        *message_events(make_message())[:1],
        make_event("content_block_start", index=0, content_block=tool_block("toolu_1", "f", {"a": 1})),
        make_event("content_block_stop", index=0),
        *message_events(make_message(stop_reason="tool_use"))[-2:],
    ]

    got, _, error = await read_to_end(Pieces(events))

    assert error is None
    assert gather(event_values(got))["tool_calls"] == [{"id": "toolu_1", "name": "f", "arguments": '{"a":1}'}]


async def test_stream_cut_into_single_bytes_is_the_same() -> None:
    """Where the network cuts changes nothing."""
    whole, _, _ = await read_to_end(Pieces([b"".join(_EVENTS)]))

    got, stream, error = await read_to_end(Pieces(bytes([byte]) for byte in b"".join(_EVENTS)))

    assert (got, error, stream.end) == (whole, None, StreamEnd.CLEAN)


async def test_stream_cut_in_two_at_every_byte_is_the_same() -> None:
    """Every single place to cut, CRLF line ends included."""
    data = b"".join(message_events(make_message(text_block("Grüße 🎉"), tool_block("t", "f", {"a": "ü"}))))
    whole, _, _ = await read_to_end(Pieces([data]))

    for encoded in (data, data.replace(b"\n", b"\r\n")):
        for at in range(1, len(encoded)):
            got, stream, error = await read_to_end(Pieces([encoded[:at], encoded[at:]]))
            assert (got, error, stream.end) == (whole, None, StreamEnd.CLEAN), at


@pytest.mark.parametrize("num_events", range(len(_EVENTS)))
async def test_stream_that_ends_after_any_event_but_the_last_is_cut(num_events: int) -> None:
    """A stream without message_stop never ends clean, and never with [DONE]."""
    pieces = _EVENTS[:num_events]

    for cut in (pieces, [*pieces, _EVENTS[num_events][:-1]]):
        got, stream, error = await read_to_end(Pieces(cut))
        assert isinstance(error, UpstreamCut)
        assert stream.end is StreamEnd.UPSTREAM_CUT
        assert b"[DONE]" not in got


async def test_stream_that_stalls_ends_as_stalled() -> None:
    """The wire's own errors pass as they are, after what had come."""
    got, stream, error = await read_to_end(Pieces(_EVENTS[:5], StreamStalled("silent")))

    assert isinstance(error, StreamStalled)
    assert stream.end is StreamEnd.STALL
    assert event_values(got)


async def test_stream_error_event_in_the_middle_is_an_error_after_what_came_before() -> None:
    """Not a clean end, not a [DONE], and nothing of the upstream's text."""
    failing = make_event(**make_error("overloaded_error", "secret"))

    for pieces in ([*_EVENTS[:6], failing], [b"".join(_EVENTS[:6]) + failing + b"".join(_EVENTS[6:])]):
        got, stream, error = await read_to_end(Pieces(pieces))
        assert isinstance(error, UpstreamErrorEvent)
        assert stream.end is StreamEnd.ERROR
        assert gather(event_values(got))["reasoning_content"] == "Let me think"
        assert b"[DONE]" not in got
        assert b"secret" not in got + error.message.encode()


async def test_stream_error_is_raised_again_on_every_read() -> None:
    """A reader that goes on reading does not get a clean end instead."""
    source = TranslatedSource(Pieces([b"data: nonsense\n\n"]), EventTranslator(Facts(), _CREATED))

    for _ in range(2):
        with pytest.raises(UpstreamGarbage):
            await source.read()


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense",
        b"[]",
        b"{}",
        b'{"type":"message_start","message":{"id":7}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"early"}}',
        b'{"type":"message_delta","delta":{"stop_reason":"end_turn"}}',
        b'{"type":"ping","x":"\xff"}',
        b'{"type":"error"}',
        b'{"type":"content_block_delta","index":0}',
        b"[" * 100_000,
    ],
    ids=range(10),
)
async def test_stream_that_begins_with_something_else_is_garbage(data: bytes) -> None:
    """What cannot be the Messages API is not guessed at."""
    got, stream, error = await read_to_end(Pieces([b"data: " + data + b"\n\n"]))

    assert isinstance(error, UpstreamGarbage)
    assert stream.end is StreamEnd.ERROR
    assert got == b""


async def test_stream_stop_without_a_stop_reason_is_a_cut() -> None:
    """An answer that never said why it stopped is not complete."""
    got, _, error = await read_to_end(Pieces([*_EVENTS[:-2], _EVENTS[-1]]))

    assert isinstance(error, UpstreamCut)
    assert b"[DONE]" not in got


async def test_stream_unknown_events_blocks_and_deltas_are_passed_over() -> None:
    """The API may add any of these within a version, with fields of any shape."""
    plain = message_events(make_message(text_block("Hello")))
    strange = [
        b": a comment\n\n",
        b"event: only\n\n",
        make_event("event_of_tomorrow", delta="text", message=7),
        make_event("content_block_start", index=9, content_block={"type": "block_of_tomorrow", "text": "no"}),
        make_event("content_block_delta", index=9, delta={"type": "delta_of_tomorrow", "text": "no"}),
        make_event("content_block_delta", index=9, delta={"type": "input_json_delta", "partial_json": "no"}),
        make_event("content_block_stop", index=9),
    ]

    got, _, error = await read_to_end(Pieces([plain[0], *strange, *plain[1:], *strange]))

    assert error is None
    assert gather(event_values(got))["content"] == "Hello"


async def test_stream_whole_answer_ends_clean_however_the_transport_ends() -> None:
    """After message_stop nothing can be missing, so a broken end of the connection is no error."""
    for error in (UpstreamCut("reset"), StreamStalled("silent")):
        exchange = Pieces(_EVENTS, error)
        got, stream, raised = await read_to_end(exchange)
        assert raised is None
        assert stream.end is StreamEnd.CLEAN
        assert got.endswith(DONE_EVENT)
        assert exchange.idle_s <= 1.0


async def test_stream_events_after_the_end_are_passed_over() -> None:
    """Nothing follows [DONE], whatever else is in the same piece or the next."""
    whole, _, _ = await read_to_end(Pieces(_EVENTS))

    for pieces in ([b"".join(_EVENTS + _EVENTS)], [*_EVENTS, *_EVENTS]):
        got, stream, error = await read_to_end(Pieces(pieces))
        assert (got, error, stream.end) == (whole, None, StreamEnd.CLEAN)


async def test_stream_close_closes_the_exchange() -> None:
    """Leaving in the middle cancels the work upstream."""
    exchange = Pieces(_EVENTS)
    stream = Stream(TranslatedSource(exchange, EventTranslator(Facts(), _CREATED)))
    await stream.read()

    await stream.aclose()

    assert exchange.is_closed
    assert stream.end is StreamEnd.CLIENT_GONE


async def test_stream_facts_hold_the_usage_and_the_model() -> None:
    """Later totals replace earlier ones; what only the start says is kept."""
    facts = Facts()

    await read_to_end(Pieces(_EVENTS), facts)

    assert facts.usage == Usage(prompt_tokens=17, completion_tokens=5, cached_tokens=7)
    assert facts.upstream_model == "claude-test-1"


async def test_stream_that_tells_less_at_its_end_takes_nothing_back() -> None:
    """Servers that speak the Messages API after Anthropic say 0 there of a prompt that they have told before."""
    facts = Facts()
    usage = {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 5}
    end = make_event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage)
    await read_to_end(Pieces([*_EVENTS[:-2], end, _EVENTS[-1]]), facts)

    assert facts.usage == Usage(prompt_tokens=17, completion_tokens=5, cached_tokens=7)


async def test_stream_facts_say_whether_all_of_the_usage_is_told() -> None:
    """Before its end it is what was known at the beginning."""
    told = []
    for pieces in (_EVENTS[:3], _EVENTS):
        facts = Facts()
        await read_to_end(Pieces(pieces), facts)
        told.append(facts.is_usage_partial)

    assert told == [True, False]


async def test_stream_that_is_cut_still_tells_what_it_counted() -> None:
    """The prompt was paid for, so its tokens are known."""
    facts = Facts()

    await read_to_end(Pieces(_EVENTS[:3]), facts)

    assert facts.usage == Usage(prompt_tokens=17, completion_tokens=1, cached_tokens=7)

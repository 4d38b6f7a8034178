"""What is kept and what is not, told from the answer itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.operations import Operation
from backends.protocol import Call, Headers, Reply
from backends.resume import RESUME_FIELD, Resumed
from backends.stream import StreamEnd
from policies.cache.record import Recorder, entry_of_body, entry_of_events, may_store
from tests.support.calls import make_call
from tests.support.policy.cache import (
    DONE_EVENT,
    JSON,
    SSE,
    USAGE,
    USAGE_EVENT,
    chat_answer,
    chat_chunk,
    chat_events,
    event,
)

MAX_BYTES = 100_000


def is_kept(body: bytes, call: Call | None = None, headers: Headers = JSON, status: int = 200) -> bool:
    """Whether a plain answer would be stored."""
    call = call or make_call()
    entry = entry_of_body(call, Reply(status, headers, body=body), 1.0)
    return entry is not None and may_store(call, headers, entry, MAX_BYTES)


def are_kept(events: list[bytes], call: Call | None = None, headers: Headers = SSE) -> bool:
    """Whether a stream that ended cleanly would be stored."""
    call = call or make_call(stream=True)
    entry = entry_of_events(call, headers, b"".join(events), 1.0)
    return entry is not None and may_store(call, headers, entry, MAX_BYTES)


def choice(finish_reason: str | None, index: int = 0) -> dict[str, Any]:
    """A whole choice."""
    return {"index": index, "message": {"role": "assistant", "content": "x"}, "finish_reason": finish_reason}


def test_good_answers_are_kept() -> None:
    """What a healthy upstream says is stored, whatever text it holds."""
    assert is_kept(chat_answer())
    assert is_kept(chat_answer('{"error": {"x": 1}, "finish_reason": "content_filter"}'))
    assert are_kept(chat_events('{"error": {"x": 1}}', '"content_filter"', '"usage":{}'))
    assert is_kept(b'{"object":"list","data":[{"embedding":[0.5]}]}', make_call(operation=Operation.EMBEDDING))
    assert is_kept(b'{"status":"completed","error":null}', make_call(operation=Operation.RESPONSES))


def test_streams_of_several_choices_are_kept_where_all_are_finished() -> None:
    """A `[DONE]` behind one of two says nothing of the other."""
    both = make_call(stream=True, extra={"n": 2})

    assert not are_kept(chat_events("one"), both)
    assert are_kept([*chat_events("one")[:-1], *chat_events("two")], both)


def test_answers_that_broke_off_and_went_on_are_not_kept() -> None:
    """Neither where they were put together, nor where only their end was said; one that did not break is."""
    resumed = make_call(stream=True)
    resumed.facts.resumed = [Resumed(backend="a", kind="exact", outcome="resumed", to="b", tokens=3)]

    assert not are_kept(chat_events("whole"), resumed)
    assert not are_kept(chat_events("end"), make_call(stream=True, extra={RESUME_FIELD: {"id": "a", "tokens": [1]}}))
    assert are_kept(chat_events("whole"), make_call(stream=True, extra={RESUME_FIELD: {}}))


@pytest.mark.parametrize("status", [201, 204, 400, 429, 500, 503])
def test_answers_of_another_status_are_not_kept(status: int) -> None:
    """Only a 200 is an answer."""
    assert not is_kept(chat_answer(), status=status)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        chat_answer()[:-1],
        b'{"error":{"message":"no"}}',
        chat_answer(error={"message": "no"}),
        chat_answer(choices=[]),
        chat_answer(choices=[choice(None)]),
        chat_answer(choices=[choice("stop"), choice("content_filter", 1)]),
        chat_answer(choices=[choice("")]),
        chat_answer(choices=[choice("stop") | {"error": {"code": 502, "message": "no"}}]),
        chat_answer("x" * MAX_BYTES),
    ],
    ids=lambda body: body[:24].decode(),
)
def test_answers_that_are_not_whole_and_good_are_not_kept(body: bytes) -> None:
    """Errors in a 200, halves, unfinished and filtered answers, and what is too large."""
    assert not is_kept(body)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"text/html")],
        [*JSON, (b"content-encoding", b"gzip")],
        [*JSON, (b"cache-control", b"private, No-Store")],
    ],
    ids=str,
)
def test_answers_with_other_headers_are_not_kept(headers: Headers) -> None:
    """Other types, compressed bodies, and what the upstream forbids to store."""
    assert not is_kept(chat_answer(), headers=headers)


@pytest.mark.parametrize("status", ["in_progress", "queued", "failed", "incomplete", "cancelled", None])
def test_responses_that_are_not_completed_are_not_kept(status: str | None) -> None:
    """A response may be a 200 and have no answer yet."""
    assert not is_kept(msgspec.json.encode({"status": status}), make_call(operation=Operation.RESPONSES))


WHOLE_REASONS = ("stop", "length", "tool_calls", "function_call", "eos", "stop_sequence")
BROKEN_REASONS = (
    "error",
    "abort",
    "insufficient_system_resource",
    "SAFETY",
    "function_call_filter: MALFORMED_FUNCTION_CALL",
)


@pytest.mark.parametrize("reason", [*WHOLE_REASONS, *BROKEN_REASONS])
def test_answers_are_kept_only_where_their_end_is_the_models_own(reason: str) -> None:
    """Servers have words of their own for what they broke off, more than anyone can list."""
    is_whole = reason in WHOLE_REASONS

    assert is_kept(chat_answer(choices=[choice(reason)])) is is_whole
    assert are_kept(chat_events(finish_reason=reason)) is is_whole


def test_stream_whose_every_event_has_an_empty_reason_is_kept_once_one_says_more() -> None:
    """Some servers write an empty text where others write null."""
    events = chat_events(finish_reason="")

    assert not are_kept(events)
    assert are_kept([*events[:-2], chat_chunk({}, "stop"), *events[-2:]])


def test_responses_stream_is_kept_only_if_completed() -> None:
    """The last event says how it went."""
    call = make_call(operation=Operation.RESPONSES, stream=True)
    begin = event({"type": "response.created", "response": {"usage": None, "error": None}})

    assert are_kept([begin, event({"type": "response.completed", "response": {"usage": {"input_tokens": 1}}})], call)
    assert not are_kept([begin, event({"type": "response.failed", "response": {"status": "failed"}})], call)
    assert not are_kept([begin, event({"type": "response.output_text.delta", "delta": '"response.completed"'})], call)
    said = event({"type": "response.output_text.done", "text": "response.completed"})
    cut = {"type": "response.incomplete", "response": {"metadata": {"type": "response.completed"}}}
    assert not are_kept([begin, said, event(cut)], call)
    assert not are_kept([begin, said, event({"type": "error", "message": "no"})], call)
    assert not are_kept([begin, said, event(begin.decode())], call)


def test_streams_with_an_error_a_filter_or_no_end_are_not_kept() -> None:
    """A clean end of the transport is not enough."""
    assert not are_kept([*chat_events()[:2], event({"error": {"message": "no"}}), DONE_EVENT])
    assert not are_kept([*chat_events()[:2], event({"error": "no"}), DONE_EVENT])
    assert not are_kept([*chat_events()[:4], b'data: {"usage": {\n\n', DONE_EVENT])
    assert not are_kept(chat_events(finish_reason="content_filter"))
    assert not are_kept([*chat_events()[:2], DONE_EVENT])
    assert not are_kept(chat_events(), headers=JSON)
    assert not are_kept(chat_events(), headers=[*SSE, (b"content-encoding", b"br")])


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=repr)
@pytest.mark.parametrize("place", ["middle", "last", "first"])
def test_usage_event_is_found_where_it_lies(line_end: bytes, place: str) -> None:
    """The event with the usage alone is cut out exactly, whatever the line ends."""
    said = chat_events()[:3]
    parts = {"first": (b"", b"".join(said)), "middle": (b"".join(said), DONE_EVENT), "last": (b"".join(said), b"")}
    before, after = (part.replace(b"\n", line_end) for part in parts[place])
    usage = USAGE_EVENT.replace(b"\n", line_end)
    entry = entry_of_events(make_call(stream=True), SSE, before + usage + after, 1.0)

    assert entry is not None
    assert entry.shows_usage
    assert entry.usage_event == (len(before), len(before) + len(usage))


def test_usage_inside_another_event_is_not_cut_out() -> None:
    """Some upstreams report usage with the last words; those must stay."""
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE})
    entry = entry_of_events(make_call(stream=True), SSE, chat_chunk({"content": "x"}) + last + DONE_EVENT, 1.0)

    assert entry is not None
    assert entry.shows_usage
    assert entry.usage_event is None


def test_usage_that_is_null_is_none() -> None:
    """`usage: null` on every chunk is how OpenAI says that it comes later."""
    events = event({"choices": [], "usage": None}) + DONE_EVENT
    entry = entry_of_events(make_call(stream=True), SSE, events, 1.0)

    assert entry is not None
    assert not entry.shows_usage
    assert entry.usage_event is None


def test_recorder_hands_over_only_clean_streams_within_bounds() -> None:
    """The tap keeps a whole stream and forgets every other one."""
    kept: list[bytes] = []
    for how in StreamEnd:
        for num_bytes in (10, 11):
            recorder = Recorder(10, kept.append)
            recorder.feed(b"x" * 5)
            recorder.feed(b"y" * (num_bytes - 5))
            recorder.end(how)

    assert kept == [b"xxxxxyyyyy"]

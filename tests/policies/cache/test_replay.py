"""Answers in the form that was asked for: what the other form would have said, or nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.operations import Operation
from backends.protocol import Call
from policies.cache.entry import AnswerForm, Entry
from policies.cache.record import entry_of_events
from policies.cache.replay.render import Replayed, render
from tests.support.calls import event_values, make_call
from tests.support.policy.cache import (
    DONE_EVENT,
    HEAD,
    SSE,
    USAGE,
    USAGE_EVENT,
    chat_answer,
    chat_chunk,
    chat_events,
    event,
)

PLAIN = make_call()
STREAMED = make_call(stream=True)
STREAMED_WITH_USAGE = make_call(stream=True, include_usage=True)
CHOICES = {"object": "chat.completion.chunk", "choices": []}


def json_entry(answer: Any) -> Entry:
    """A stored JSON answer."""
    body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    return Entry(AnswerForm.JSON, body, b"application/json", 1.0)


def sse_entry(*events: bytes) -> Entry:
    """A stored stream, as it is recorded."""
    entry = entry_of_events(STREAMED, SSE, b"".join(events), 1.0)
    assert entry is not None
    return entry


def whole(*events: bytes, call: Call = PLAIN) -> Any:
    """The JSON that a plain call gets of a stored stream, or None."""
    body = render(sse_entry(*events), call)
    return None if body is None else msgspec.json.decode(body)


def chunks(answer: Any, call: Call = STREAMED) -> list[Any] | None:
    """The chunks that a streamed call gets of a stored JSON answer, or None."""
    body = render(json_entry(answer), call)
    if body is None:
        return None
    assert body.endswith(DONE_EVENT)
    return event_values(body)


def answer_with(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    """A chat answer with this message."""
    part = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", **choice}
    return {**HEAD, "object": "chat.completion", "choices": [part], "usage": USAGE}


def test_render_in_the_stored_form_is_verbatim() -> None:
    """Nothing is decoded or written anew where the form is right."""
    body = b'{ "odd" :  1.0e0 , "white":"space" }'

    assert render(json_entry(body), PLAIN) == body
    assert render(sse_entry(*chat_events()), STREAMED_WITH_USAGE) == b"".join(chat_events())


def test_render_of_a_stream_without_asked_usage_leaves_that_event_out() -> None:
    """Usage is in a stream only for who asked for it."""
    body = render(sse_entry(*chat_events()), STREAMED)

    assert body == b"".join(one for one in chat_events() if one != USAGE_EVENT)


def test_render_of_a_stream_that_lacks_the_asked_usage_is_none() -> None:
    """A number that nobody has is not made up."""
    events = [one for one in chat_events() if one != USAGE_EVENT]

    assert render(sse_entry(*events), STREAMED_WITH_USAGE) is None
    assert render(json_entry(chat_answer(usage=None)), STREAMED_WITH_USAGE) is None
    assert render(sse_entry(*events), STREAMED) is not None


def test_render_of_json_as_stream_says_everything_in_order() -> None:
    """Role, reasoning, text, refusal, tool calls, finish; one field a chunk, ids and unknown fields on each."""
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "type": "custom", "custom": {"name": "g", "input": "x"}},
    ]
    logprobs: dict[str, Any] = {
        "content": [{"token": "t", "logprob": -0.25, "bytes": None, "top_logprobs": []}],
        "refusal": None,
    }
    message = {
        "role": "assistant",
        "content": "text",
        "refusal": None,
        "tool_calls": calls,
        "reasoning_content": "why",
        "audio": {"id": "x", "data": "AA=="},
    }
    answer = {**answer_with(message, logprobs=logprobs, stop_reason=7), "system_fingerprint": "fp", "new": [1]}
    got = chunks(answer)

    assert got is not None
    assert [{name: chunk[name] for name in chunk if name != "choices"} for chunk in got] == [
        {**HEAD, "object": "chat.completion.chunk", "system_fingerprint": "fp", "new": [1]}
    ] * len(got)
    choices = [chunk["choices"][0] for chunk in got]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"reasoning_content": "why"},
        {"audio": {"id": "x", "data": "AA=="}},
        {"content": "text"},
        {"tool_calls": [{**calls[0], "index": 0}]},
        {"tool_calls": [{**calls[1], "index": 1}]},
        {},
    ]
    assert [choice["logprobs"] for choice in choices] == [None, None, None, logprobs, None, None, None]
    assert [choice["finish_reason"] for choice in choices] == [None] * 6 + ["stop"]
    assert choices[-1]["stop_reason"] == 7


def test_render_of_json_as_stream_ends_with_usage_if_asked() -> None:
    """Last chunk, no choices; `usage: null` on those before, as OpenAI does."""
    got = chunks(chat_answer(), STREAMED_WITH_USAGE)

    assert got is not None
    assert got[-1] == {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}
    assert all(chunk["usage"] is None for chunk in got[:-1])
    assert "usage" not in (chunks(chat_answer()) or [{"usage": 0}])[0]


def test_render_of_several_choices_keeps_each() -> None:
    """n answers are n answers in both forms, however the stream mixed them."""
    events = [
        chat_chunk({"role": "assistant", "content": "b"}, index=1),
        chat_chunk({"role": "assistant", "content": "a"}),
        chat_chunk({"content": "2"}, index=1),
        chat_chunk({"content": "1"}, "length"),
        chat_chunk({}, "stop", index=1),
        DONE_EVENT,
    ]
    answer = whole(*events)

    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in answer["choices"]] == [
        (0, "a1", "length"),
        (1, "b2", "stop"),
    ]
    assert msgspec.json.decode(render(sse_entry(render(json_entry(answer), STREAMED) or b""), PLAIN) or b"0") == answer


def test_render_of_a_stream_as_json_merges_tool_calls() -> None:
    """Arguments are joined by index; repeated or empty names and ids are not."""
    events = [
        chat_chunk({"role": "assistant", "content": None, "tool_calls": [
            {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
        chat_chunk({"tool_calls": [{"index": 0, "id": "", "function": {"name": None, "arguments": '{"x":'}}]}),
        chat_chunk({"tool_calls": [{"index": 1, "id": "b", "type": "custom", "custom": {"name": "g", "input": "1"}}]}),
        chat_chunk({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"arguments": "1}"}}]}),
        chat_chunk({"tool_calls": [{"index": 1, "custom": {"input": "2"}}]}),
        chat_chunk({}, "tool_calls"),
        DONE_EVENT,
    ]  # fmt: skip
    message = whole(*events)["choices"][0]["message"]

    assert message == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "custom", "custom": {"name": "g", "input": "12"}},
        ],
    }


def test_render_of_a_stream_as_json_joins_logprobs_and_reasoning() -> None:
    """Lists are joined, texts are joined, comments and obfuscation leave no trace."""
    events = [
        b": ping\n\n",
        event({**HEAD, "id": "", "choices": [], "prompt_filter_results": [1], "obfuscation": "x"}),
        chat_chunk({"role": "assistant", "reasoning_content": "wh"}, logprobs={"content": [1], "refusal": None}),
        chat_chunk({"reasoning_content": "y", "content": "a"}, logprobs={"content": [2, 3], "refusal": None}),
        chat_chunk({"thinking_blocks": [{"index": 0}]}),
        chat_chunk({"thinking_blocks": [{"index": 1}]}),
        chat_chunk({"content": "b", "function_call": {"name": "f", "arguments": "1"}}),
        chat_chunk({"function_call": {"arguments": "2"}}, "stop"),
        USAGE_EVENT.replace(b"data: ", b"event: x\ndata:"),
        DONE_EVENT,
    ]
    answer = whole(*events)

    assert answer["choices"][0] == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": "ab",
            "refusal": None,
            "reasoning_content": "why",
            "thinking_blocks": [{"index": 0}, {"index": 1}],
            "function_call": {"name": "f", "arguments": "12"},
        },
        "logprobs": {"content": [1, 2, 3], "refusal": None},
        "finish_reason": "stop",
    }
    expected = {**HEAD, "object": "chat.completion", "usage": USAGE, "prompt_filter_results": [1]}
    assert {name: value for name, value in answer.items() if name != "choices"} == expected


@pytest.mark.parametrize(
    "events",
    [
        [],
        [DONE_EVENT],
        [USAGE_EVENT, DONE_EVENT],
        chat_events()[:-1],
        [*chat_events()[:3], DONE_EVENT],
        [chat_chunk({"content": [{"type": "text"}]}, "stop"), DONE_EVENT],
        [chat_chunk({"tool_calls": [{"id": "a"}]}, "stop"), DONE_EVENT],
        [chat_chunk({"tool_calls": {"id": "a"}}, "stop"), DONE_EVENT],
        [chat_chunk({"tool_calls": [{"index": 0, "id": "a"}, {"index": 0, "id": "b"}]}, "stop"), DONE_EVENT],
        [chat_chunk({"annotations": [1]}), chat_chunk({"annotations": [2]}, "stop"), DONE_EVENT],
        [chat_chunk({"thinking": "a"}), chat_chunk({"thinking": "b"}, "stop"), DONE_EVENT],
        [chat_chunk({"audio": {"data": "AA=="}}), chat_chunk({"audio": {"data": "BB=="}}, "stop"), DONE_EVENT],
        [chat_chunk({"content": "a"}, "stop", logprobs=3), DONE_EVENT],
        [chat_chunk({"content": "a"}, "stop", index="0"), DONE_EVENT],
        [event({"choices": [{"index": 0, "delta": [1], "finish_reason": "stop"}]}), DONE_EVENT],
        [event({**CHOICES, "choices": {"a": 1}}), DONE_EVENT],
        [event([1]), DONE_EVENT],
        [b"data: {not json}\n\n", DONE_EVENT],
    ],
    ids=lambda events: repr(b"".join(events)[-70:]),
)
def test_render_of_a_stream_that_cannot_be_merged_is_none(events: list[bytes]) -> None:
    """Where the whole would be a guess there is no whole."""
    body = b"".join(events)
    entry = Entry(AnswerForm.SSE, body, b"text/event-stream", 1.0)

    assert render(entry, PLAIN) is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"null",
        b'{"choices":null}',
        b'{"choices":[]}',
        b'{"choices":[1]}',
        answer_with({"role": "assistant", "content": [{"type": "text", "text": "x"}]}),
        answer_with({"role": "assistant", "content": "x", "tool_calls": {"a": 1}}),
        answer_with({"role": "assistant", "content": "x", "tool_calls": ["a"]}),
        answer_with({"role": "assistant", "content": "x"}, finish_reason=None),
        {"choices": [{"index": 0, "message": "x", "finish_reason": "stop"}]},
    ],
    ids=lambda answer: repr(answer)[-60:],
)
def test_render_of_json_that_cannot_be_split_is_none(answer: Any) -> None:
    """An answer of an unknown shape is given in its own form only."""
    assert render(json_entry(answer), STREAMED) is None


@pytest.mark.parametrize("operation", [Operation.EMBEDDING, Operation.RESPONSES])
def test_render_of_operations_without_conversion_is_verbatim_or_none(operation: Operation) -> None:
    """Their streams and documents are different things."""
    plain, streamed = make_call(operation=operation), make_call(operation=operation, stream=True)
    stream = Entry(AnswerForm.SSE, b"data: x\n\n", b"text/event-stream", 1.0)

    assert render(json_entry(b"{}"), plain) == b"{}"
    assert render(stream, streamed) == stream.body
    assert render(json_entry(b"{}"), streamed) is None
    assert render(stream, plain) is None


async def test_replayed_gives_everything_once() -> None:
    """One piece, then the end."""
    source = Replayed(b"abc")

    assert [await source.read(), await source.read()] == [b"abc", b""]


def test_completion_in_both_forms_is_the_same() -> None:
    """The older completions convert as well: text, logprobs, unknown fields and several choices."""
    logprobs: dict[str, Any] = {
        "tokens": ["a", "b"],
        "token_logprobs": [-1.5, None],
        "top_logprobs": [{"a": -1.5}, None],
    }
    choices = [
        {"text": "ab", "index": 0, "logprobs": logprobs, "finish_reason": "length"},
        {"text": "", "index": 1, "logprobs": None, "finish_reason": "stop", "stop_reason": 3},
    ]
    answer = {**HEAD, "object": "text_completion", "choices": choices, "usage": USAGE}
    streamed = make_call(operation=Operation.COMPLETION, stream=True, include_usage=True)
    body = render(json_entry(answer), streamed)

    assert body is not None
    assert [chunk["object"] for chunk in event_values(body)] == ["text_completion"] * 5
    back = render(sse_entry(body), make_call(operation=Operation.COMPLETION))
    assert msgspec.json.decode(back or b"") == answer


@pytest.mark.parametrize(
    "choice", [{"text": "x", "finish_reason": None}, {"text": 3, "finish_reason": "stop"}], ids=str
)
def test_completion_that_is_not_whole_is_not_split(choice: dict[str, Any]) -> None:
    """The same rules hold as for chat."""
    streamed = make_call(operation=Operation.COMPLETION, stream=True)

    assert render(json_entry({"choices": [choice]}), streamed) is None


def test_completion_stream_that_never_finished_is_not_merged() -> None:
    """A text without its finish reason may be half of one."""
    entry = sse_entry(event({**HEAD, "choices": [{"index": 0, "text": "x", "finish_reason": None}]}), DONE_EVENT)

    assert render(entry, make_call(operation=Operation.COMPLETION)) is None


@given(st.binary(max_size=200) | st.lists(st.sampled_from(chat_events()), max_size=6).map(b"".join))
def test_render_of_anything_does_not_raise(body: bytes) -> None:
    """Whatever was stored: an answer or None."""
    for form in AnswerForm:
        for call in (PLAIN, STREAMED, make_call(operation=Operation.COMPLETION)):
            render(Entry(form, body, b"", 1.0), call)


@pytest.mark.parametrize("num_words", [1, 63, 3000])
def test_render_of_a_long_stream_holds_every_word(num_words: int) -> None:
    """However many deltas there are."""
    events = chat_events(*[f"word{number} " for number in range(num_words)])

    expected = "".join(f"word{number} " for number in range(num_words))
    assert whole(*events)["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": "\xff", "choices": []}',
        b'{"\xff": 1, "choices": []}',
        b'{"choices": [{"message": {"content": "caf\xe9"}}]}',
        b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"choices": [], "created": 1e999}',
        b"\xff",
    ],
    ids=["text", "name", "content", "deep", "infinite", "bytes"],
)
def test_stored_bytes_that_are_not_json_are_no_stream(body: bytes) -> None:
    """They are given as they came, and to a streamed call not at all."""
    assert render(json_entry(body), PLAIN) == body
    assert render(json_entry(body), STREAMED) is None


def test_stored_stream_with_broken_text_is_no_document() -> None:
    """A broken byte in the middle of a stream is passed on in a stream, and makes no JSON."""
    broken = chat_chunk({"content": "caf"}).replace(b"caf", b"caf\xe9")
    entry = sse_entry(broken, chat_chunk({}, finish_reason="stop"), DONE_EVENT)

    assert render(entry, STREAMED) is not None
    assert render(entry, PLAIN) is None

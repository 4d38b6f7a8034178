"""Answers in OpenAI's shapes, whole and streamed: what the two say is the same."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from typing import Any

import pytest

from backends.charges.usage import Usage as CallUsage
from backends.engine.request import Event, TokenLogprob, TokenUsage
from backends.operations import Operation
from backends.serving.replies.parts import Head
from backends.serving.requests import Job, Model, plan
from backends.serving.tool_syntax import HERMES, MISTRAL
from tests.support.calls import event_values, make_call
from tests.support.engine.fake_engine import Characters, make_model

HEAD = Head("id-1", 1_700_000_000, "test-model", "fp")
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALLS = [
    '<tool_call>{"name": "weather", "argu',
    'ments": {"city": "Oslo"}}</tool_call>\n<tool_call>{"name": "weather", "arguments": {}}</tool_call>',
]
USAGE = TokenUsage(prompt_tokens=5, cached_tokens=2, completion_tokens=3, prediction_accepted=2, prediction_rejected=1)


def job_of(extra: dict[str, Any], operation: Operation = Operation.CHAT, model: Model | None = None) -> Job:
    """The job of a call with this in its body."""
    call = make_call(operation=operation, extra=extra, stream=extra.get("stream", False))
    return plan(call, model or make_model(syntax=HERMES), HEAD)


def events_of(texts: list[str], *, request_id: str = "id-1", index: int = 0, **last: Any) -> list[Event]:
    """An event for each text, with usage; the last one ends the choice."""
    events = [Event(request_id=request_id, index=index, text=text, usage=USAGE) for text in texts[:-1]]
    ended = {"finish_reason": "stop", "is_last": True, **last}
    return [*events, Event(request_id=request_id, index=index, text=texts[-1], usage=USAGE, **ended)]


def whole(extra: dict[str, Any], events: list[Event], **fields: Any) -> dict[str, Any]:
    """The body that these events become."""
    job = job_of(extra, **fields)
    for event in events:
        job.answer.take(event)
        assert job.answer.drain() == b""
    body: dict[str, Any] = json.loads(job.answer.finish())
    return body


def streamed(extra: dict[str, Any], events: list[Event], **fields: Any) -> list[dict[str, Any]]:
    """The chunks that these events become, each event read as it comes."""
    job = job_of({**extra, "stream": True}, **fields)
    pieces = []
    for event in events:
        job.answer.take(event)
        pieces.append(job.answer.drain())
    pieces.append(job.answer.finish())
    stream = b"".join(pieces)
    assert stream.endswith(b"data: [DONE]\n\n")
    return event_values(stream)


def deltas(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    """What one choice's chunks say."""
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def test_chat_whole_has_openais_shape() -> None:
    """Every field of a plain answer, and no others."""
    assert whole({}, events_of(["Hi", " you"])) == {
        "id": "id-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "test-model",
        "system_fingerprint": "fp",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi you", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


def test_chat_stream_is_role_deltas_reason_usage() -> None:
    """The chunks of a plain answer, in order; an event without text makes none."""
    chunks = streamed({}, events_of(["Hi", "", " you"]))

    assert deltas(chunks) == [{"role": "assistant", "content": ""}, {"content": "Hi"}, {"content": " you"}, {}]
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]] == [None, None, None, "stop"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 8
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {(chunk["id"], chunk["created"], chunk["system_fingerprint"]) for chunk in chunks} == {
        ("id-1", 1_700_000_000, "fp")
    }


def test_chat_choices_interleave_in_a_stream() -> None:
    """Each choice has its role and its end, whatever the others do meanwhile."""
    first = events_of(["a", "b"], is_last=False)
    second = events_of(["c", "d"], index=1, finish_reason="length")

    chunks = streamed({"n": 2}, [first[0], second[0], first[1], second[1]])

    assert [choice["index"] for chunk in chunks for choice in chunk["choices"]] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert deltas(chunks, 1) == [{"role": "assistant", "content": ""}, {"content": "c"}, {"content": "d"}, {}]
    assert whole({"n": 2}, [*second, *first])["choices"][1]["finish_reason"] == "length"


def test_chat_prediction_tokens_are_in_the_usage_that_asked_for_them() -> None:
    """Accepted and rejected tokens of a prediction are told to those who made one."""
    prediction = {"type": "content", "content": "Hi"}

    usage = whole({"prediction": prediction}, events_of(["Hi"]))["usage"]

    assert usage["completion_tokens_details"] == {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 1}


def test_chat_logprobs_name_tokens_and_alternatives() -> None:
    """Each token with its bytes and as many alternatives as were asked for; none is lost where text is held back."""
    logprob = TokenLogprob(233, -0.5, ((120, -0.25), (121, -1.5)))
    events = [
        Event(request_id="id-1", logprobs=(logprob,)),
        Event(request_id="id-1", text="éé", logprobs=(logprob,), finish_reason="stop", is_last=True, usage=USAGE),
    ]
    expected = {
        "token": "é",
        "logprob": -0.5,
        "bytes": [195, 169],
        "top_logprobs": [{"token": "x", "logprob": -0.25, "bytes": [120]}],
    }
    asked = {"logprobs": True, "top_logprobs": 1}

    body = whole(asked, events)
    chunks = streamed(asked, events)

    assert body["choices"][0]["logprobs"] == {"content": [expected, expected], "refusal": None}
    found = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert found == [{"content": [expected], "refusal": None}] * 2


def test_chat_tool_calls_are_taken_out_of_the_text() -> None:
    """Whole and streamed: the same calls with the same ids, no text, and the reason that says so."""
    body = whole({"tools": TOOLS}, events_of(CALLS))
    chunks = streamed({"tools": TOOLS}, events_of(CALLS))

    [choice] = body["choices"]
    calls = choice["message"]["tool_calls"]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"] for call in calls] == [
        {"name": "weather", "arguments": '{"city": "Oslo"}'},
        {"name": "weather", "arguments": "{}"},
    ]
    assert len({call["id"] for call in calls}) == 2
    told = [call for delta in deltas(chunks) for call in delta.get("tool_calls", ())]
    assert told == [{"index": index, **call} for index, call in enumerate(calls)]
    assert not any(delta.get("content") for delta in deltas(chunks))
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_chat_one_tool_call_where_only_one_is_wanted() -> None:
    """parallel_tool_calls: false is kept, whatever the model says."""
    body = whole({"tools": TOOLS, "parallel_tool_calls": False}, events_of(CALLS))

    assert len(body["choices"][0]["message"]["tool_calls"]) == 1


def test_chat_tool_call_that_was_cut_stays_text() -> None:
    """Half a call is no call, and the reason says that the answer was cut."""
    body = whole({"tools": TOOLS}, events_of(CALLS[:1], finish_reason="length"))

    assert body["choices"][0]["message"]["content"] == CALLS[0]
    assert body["choices"][0]["finish_reason"] == "length"


def test_chat_tags_without_tools_are_text() -> None:
    """Who gave no tools gets what the model said."""
    assert whole({}, events_of(CALLS))["choices"][0]["message"]["content"] == "".join(CALLS)


def test_chat_forced_call_is_a_call() -> None:
    """An answer that was made to be one function's arguments comes as a call of it."""
    choice = {"type": "function", "function": {"name": "weather"}}

    body = whole({"tools": TOOLS, "tool_choice": choice}, events_of(['{"city":', '"Oslo"}']))

    [call] = body["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city":"Oslo"}'}


def test_chat_call_ids_fit_the_template() -> None:
    """Mistral's templates take ids of nine characters only."""
    events = events_of(['[TOOL_CALLS][{"name": "weather", "arguments": {}}]'])

    body = whole({"tools": TOOLS}, events, model=make_model(syntax=MISTRAL))

    assert len(body["choices"][0]["message"]["tool_calls"][0]["id"]) == 9


def test_chat_call_that_a_hidden_token_begins_is_found() -> None:
    """Mistral's [TOOL_CALLS] is a special token, which the text of an answer does not show."""
    events = [
        Event(request_id="id-1", text="", tokens=(5,)),
        *events_of(["weather", '{"city": "Oslo"}']),
    ]

    body = whole({"tools": TOOLS}, events, model=make_model(syntax=MISTRAL, call_token=5))

    [call] = body["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}


def completion_events(texts: list[str], prompt: int = 0, **fields: Any) -> list[Event]:
    """Events of one of a completion's prompts."""
    return events_of(texts, request_id=f"id-1-{prompt}", **fields)


def test_completion_whole_has_openais_shape() -> None:
    """Choices of several prompts are numbered through; usage is the sum."""
    events = [
        *completion_events(["c"], prompt=1, is_last=False),
        *completion_events(["a", "b"], is_last=False, finish_reason="length"),
        *completion_events(["d"], prompt=1, index=1),
        *completion_events(["e"], index=1),
    ]

    body = whole({"prompt": ["x", "y"], "n": 2}, events, operation=Operation.COMPLETION)

    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"},
        {"index": 1, "text": "e", "logprobs": None, "finish_reason": "stop"},
        {"index": 2, "text": "c", "logprobs": None, "finish_reason": "stop"},
        {"index": 3, "text": "d", "logprobs": None, "finish_reason": "stop"},
    ]
    assert (body["usage"]["prompt_tokens"], body["usage"]["total_tokens"]) == (10, 16)


def test_completion_stream_says_the_same() -> None:
    """Chunks carry text as it comes; one without anything to say is not sent."""
    chunks = streamed({}, completion_events(["a", "", "b"]), operation=Operation.COMPLETION)

    assert [choice["text"] for chunk in chunks for choice in chunk["choices"]] == ["a", "b"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("form", ["whole", "streamed"])
def test_completion_echo_with_logprobs_covers_the_prompt(form: str) -> None:
    """The prompt comes before the answer, its tokens too; of the first nothing is known."""
    known = TokenLogprob(105, -0.5, ((120, -0.25), (121, -1.0)))
    said = TokenLogprob(33, -0.75, ((33, -0.75),))
    events = completion_events(["!"], logprobs=(said,), prompt_logprobs=(None, known))
    asked = {"prompt": "hi", "echo": True, "logprobs": 1}

    if form == "whole":
        [choice] = whole(asked, events, operation=Operation.COMPLETION)["choices"]
    else:
        [choice] = streamed(asked, events, operation=Operation.COMPLETION)[0]["choices"]

    assert choice["text"] == "hi!"
    assert choice["logprobs"] == {
        "tokens": ["h", "i", "!"],
        "token_logprobs": [None, -0.5, -0.75],
        "top_logprobs": [None, {"x": -0.25}, {"!": -0.75}],
        "text_offset": [0, 1, 2],
    }


def test_completion_offsets_count_a_character_of_several_tokens_once() -> None:
    """They are places in the text, where the parts of a character have no places of their own."""

    class Bytes(Characters):
        def token_bytes(self, token: int) -> bytes:
            return bytes([token])

    texts = ["🦀!", "é", "?"]
    tokens = iter("🦀!é?".encode())
    logprobs = [tuple(TokenLogprob(next(tokens), -1.0) for _ in range(count)) for count in (5, 2, 1)]
    events = [replace(each, logprobs=of) for each, of in zip(completion_events(texts), logprobs, strict=True)]

    [choice] = whole(
        {"logprobs": 0}, events, operation=Operation.COMPLETION, model=replace(make_model(), vocabulary=Bytes())
    )["choices"]

    assert choice["logprobs"]["text_offset"] == [0, 0, 0, 0, 1, 2, 2, 3]


def test_completion_scores_a_prompt_without_output() -> None:
    """prompt_logprobs with max_tokens 0 is a score: vLLM's form, and no token of output, not in the usage either."""
    known = TokenLogprob(105, -0.5, ((120, -0.25), (105, -0.5)))
    events = completion_events(["!"], finish_reason="length", prompt_logprobs=(None, known))
    asked = {"prompt": "hi", "prompt_logprobs": 1, "max_tokens": 0}
    job = job_of(asked, Operation.COMPLETION)

    body = whole(asked, events, operation=Operation.COMPLETION)
    job.answer.take(events[0])

    assert body["choices"] == [
        {
            "index": 0,
            "text": "",
            "logprobs": None,
            "finish_reason": "length",
            "prompt_logprobs": [
                None,
                {
                    "120": {"logprob": -0.25, "rank": 1, "decoded_token": "x"},
                    "105": {"logprob": -0.5, "rank": 2, "decoded_token": "i"},
                },
            ],
        }
    ]
    assert body["usage"]["total_tokens"] == 5
    assert job.answer.usage() == CallUsage(5, 0, 2)


@pytest.mark.parametrize("dimensions", [None, 2])
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embedding_vectors_have_length_one_in_order(encoding: str, dimensions: int | None) -> None:
    """However the engine finishes them, vectors come in the order of the inputs, cut and scaled as asked."""
    events = [
        Event(request_id=f"id-1-{number}", embedding=vector, finish_reason="stop", usage=USAGE, is_last=True)
        for number, vector in ((1, (0.0, 0.0, 0.0, 0.0)), (0, (3.0, 4.0, 0.0, 12.0)))
    ]
    asked = {"input": ["a", "b"], "encoding_format": encoding, "dimensions": dimensions}

    body = whole(asked, events, operation=Operation.EMBEDDING)

    vectors = [each["embedding"] for each in body["data"]]
    if encoding == "base64":
        size = dimensions or 4
        vectors = [list(struct.unpack(f"<{size}f", base64.b64decode(vector))) for vector in vectors]
    expected = [0.6, 0.8] if dimensions else [3 / 13, 4 / 13, 0.0, 12 / 13]
    assert vectors[0] == pytest.approx(expected)
    assert vectors[1] == [0.0] * len(expected)
    assert [each["index"] for each in body["data"]] == [0, 1]
    assert body["usage"] == {"prompt_tokens": 10, "total_tokens": 10}

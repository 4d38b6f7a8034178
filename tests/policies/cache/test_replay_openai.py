"""Converted answers against OpenAI's own schemas and its own client: both forms say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from policies.cache.entry import AnswerForm, Entry
from policies.cache.record import entry_of_events
from policies.cache.replay.render import render
from tests.support.calls import event_values, make_call
from tests.support.policy.cache import HEAD, SSE, USAGE

PLAIN = make_call()
STREAMED = make_call(stream=True, include_usage=True)

_TEXT = st.text(max_size=20)
_FINISH = st.sampled_from(["stop", "length", "tool_calls"])
_TOKEN = st.fixed_dictionaries(
    {"token": _TEXT, "logprob": st.floats(-100, 0), "bytes": st.none() | st.lists(st.integers(0, 255), max_size=3)}
).map(lambda token: {**token, "top_logprobs": []})
_FUNCTION = st.fixed_dictionaries({"name": st.text(min_size=1, max_size=5), "arguments": _TEXT})
_TOOL_CALL = st.builds(
    lambda number, function: {"id": f"call_{number}", "type": "function", "function": function},
    st.integers(0, 999),
    _FUNCTION,
)
_UNKNOWN = st.none() | st.booleans() | st.integers() | _TEXT | st.lists(_TEXT, max_size=2)
_MESSAGE = st.builds(
    lambda required, known, unknown: {"role": "assistant", **required, **known, **unknown},
    st.fixed_dictionaries({"content": st.none() | _TEXT, "refusal": st.none() | _TEXT}),
    st.fixed_dictionaries(
        {},
        optional={
            "tool_calls": st.lists(_TOOL_CALL, min_size=1, max_size=3),
            "reasoning_content": _TEXT,
            "function_call": _FUNCTION,
        },
    ),
    st.dictionaries(st.sampled_from(["x_one", "x_two"]), _UNKNOWN, max_size=2),
)
_LOGPROBS = st.none() | st.fixed_dictionaries(
    {"content": st.lists(_TOKEN, min_size=1, max_size=3), "refusal": st.none() | st.lists(_TOKEN, max_size=2)}
)
_CHOICE = st.fixed_dictionaries({"message": _MESSAGE, "logprobs": _LOGPROBS, "finish_reason": _FINISH})
_ANSWERS = st.builds(
    lambda choices, extra: {
        **HEAD,
        "object": "chat.completion",
        **extra,
        "choices": [{"index": index, **choice} for index, choice in enumerate(choices)],
        "usage": USAGE,
    },
    st.lists(_CHOICE, min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(["system_fingerprint", "service_note"]), st.text(min_size=1), max_size=2),
)


def in_pieces(answer: dict[str, Any], size: int) -> bytes:
    """The stream in which an upstream might have said this answer, its texts in pieces of `size` characters."""
    body = b""
    for chunk in event_values(streamed(answer)):
        for part in split_texts(chunk, size):
            body += b"data: " + msgspec.json.encode(part) + b"\n\n"
    return body + b"data: [DONE]\n\n"


def split_texts(chunk: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """A chunk with a text as several; the logprobs stay with the first."""
    for choice in chunk["choices"]:
        text = choice["delta"].get("content") or ""
        if len(text) > size:
            parts = [text[at : at + size] for at in range(0, len(text), size)]
            return [
                {
                    **chunk,
                    "choices": [{**choice, "delta": {"content": part}, "logprobs": None if at else choice["logprobs"]}],
                }
                for at, part in enumerate(parts)
            ]
    return [chunk]


def streamed(answer: dict[str, Any]) -> bytes:
    """The answer as a stream with usage."""
    body = render(Entry(AnswerForm.JSON, msgspec.json.encode(answer), b"application/json", 1.0), STREAMED)
    assert body is not None
    return body


def merged(stream: bytes) -> dict[str, Any]:
    """A stream as JSON."""
    entry = entry_of_events(STREAMED, SSE, stream, 1.0)
    assert entry is not None
    body = render(entry, PLAIN)
    assert body is not None
    answer: dict[str, Any] = msgspec.json.decode(body)
    return answer


@pytest.fixture(scope="module")
def openai_schemas(request: pytest.FixtureRequest) -> dict[str, Any]:
    """OpenAI's published description; it lies beside the repository where it is at hand."""
    path = Path(request.config.rootpath).parent / "shared" / "openai_spec" / "openai_trim.json"
    if not path.exists():
        pytest.skip("OpenAI's description is not at hand")
    document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return document


def validator(document: dict[str, Any], name: str) -> Draft202012Validator:
    """The check of one schema."""
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": document["components"]})


@given(_ANSWERS, st.integers(1, 5))
def test_answer_as_stream_and_back_is_the_same(answer: dict[str, Any], size: int) -> None:
    """Nothing is lost or added on the way there and back, in however many pieces the text came."""
    assert merged(streamed(answer)) == answer
    assert merged(in_pieces(answer, size)) == answer


@given(_ANSWERS)
@settings(max_examples=40)
def test_openai_client_reads_the_stream_as_the_answer(answer: dict[str, Any]) -> None:
    """The client's own accumulator makes of our stream what our JSON says."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for value in event_values(streamed(answer)):
        state.handle_chunk(ChatCompletionChunk.model_validate(value))
    accumulated = state.current_completion_snapshot.model_dump(mode="json")

    for choice, expected in zip(accumulated["choices"], answer["choices"], strict=True):
        assert choice["finish_reason"] == expected["finish_reason"]
        for name in ("content", "refusal"):
            assert (choice["message"][name] or None) == (expected["message"][name] or None)
        calls = [
            {
                "id": call["id"],
                "type": call["type"],
                "function": {n: call["function"][n] for n in ("name", "arguments")},
            }
            for call in choice["message"].get("tool_calls") or []
        ]
        assert calls == expected["message"].get("tool_calls", [])
        tokens = (choice["logprobs"] or {}).get("content")
        assert tokens == (expected["logprobs"] or {}).get("content")
    usage = accumulated["usage"]
    assert {name: usage[name] for name in USAGE} == USAGE


@given(answer=_ANSWERS, size=st.integers(1, 5))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_forms_conform_to_openai_schemas(
    openai_schemas: dict[str, Any], answer: dict[str, Any], size: int
) -> None:
    """Every chunk and every merged answer is what OpenAI's description allows."""
    chunk_validator = validator(openai_schemas, "CreateChatCompletionStreamResponse")
    for value in event_values(streamed(answer)):
        chunk_validator.validate(value)
    validator(openai_schemas, "CreateChatCompletionResponse").validate(merged(in_pieces(answer, size)))

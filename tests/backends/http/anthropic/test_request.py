"""A chat call as a Messages request: what is translated, what is refused by name, and that nothing else happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import TypeAdapter

from backends.errors import InvalidRequest
from backends.http.anthropic.request import build_request
from tests.support.calls import make_call

_DEFAULT_MAX_TOKENS = 4096
_PARAMETERS = TypeAdapter(MessageCreateParamsNonStreaming)

_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
_PNG_URL = "data:image/png;base64,iVBORw0KGgo="
_CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "text", "text": "Use tools."}]},
    {"role": "user", "content": "Weather in Zürich and Oslo?"},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": _PNG_URL, "detail": "low"}}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Two calls.",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Zürich"}'}},
            {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "12 C"},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "noon"}]},
    {"role": "user", "content": "Well?"},
]


def build(extra: Mapping[str, Any] | None = None, *, stream: bool = False) -> dict[str, Any]:
    """The request for a call with these further fields, decoded."""
    request: dict[str, Any] = msgspec.json.decode(
        build_request(make_call(extra=extra, stream=stream), _DEFAULT_MAX_TOKENS)
    )
    return request


def exhaust(value: Any) -> Any:
    """Read every lazy iterator in what the library's types validated, so that all of it has been validated."""
    if isinstance(value, Mapping):
        return {key: exhaust(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [exhaust(item) for item in value]
    return value


def test_build_request_plain_question_has_only_what_the_api_demands() -> None:
    """Nothing is added to a simple call but the limit that the API needs."""
    assert build() == {
        "model": "test-model",
        "max_tokens": _DEFAULT_MAX_TOKENS,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    }


def test_build_request_whole_conversation_becomes_alternating_turns() -> None:
    """System text moves out, neighbours of one role are one turn, tool results are part of the user's."""
    request = build({"messages": _CONVERSATION})

    assert request["system"] == [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Use tools."}]
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert request["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Weather in Zürich and Oslo?"},
                {"type": "image", "source": source},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Zürich"}},
                {"type": "tool_use", "id": "call_2", "name": "now", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "12 C"}]},
                {"type": "tool_result", "tool_use_id": "call_2", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "Well?"},
            ],
        },
    ]


_RICH_CALL: dict[str, Any] = {
    "messages": [
        *_CONVERSATION,
        {"role": "assistant", "content": [{"type": "text", "text": "It is"}, {"type": "refusal", "refusal": "no"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Read this.", "cache_control": {"type": "ephemeral"}},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {
                    "type": "file",
                    "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
                },
            ],
        },
    ],
    "tools": [{**_WEATHER, "cache_control": {"type": "ephemeral"}}, {"type": "function", "function": {"name": "now"}}],
    "tool_choice": {"type": "function", "function": {"name": "now"}},
    "parallel_tool_calls": False,
    "max_completion_tokens": 99,
    "stop": ["END", "STOP"],
    "user": "user-1",
    "reasoning_effort": "high",
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
    },
    "thinking": {"type": "adaptive"},
    "service_tier": "auto",
}


def test_build_request_everything_at_once_passes_the_real_librarys_types() -> None:
    """The official client's own types take the request, and none of it is lost in them."""
    request = build(_RICH_CALL)

    assert exhaust(_PARAMETERS.validate_python(request)) == request


def test_build_request_documents_and_marks_travel() -> None:
    """PDFs become documents, linked images stay links, marks for the prompt cache stay where they are."""
    request = build(_RICH_CALL)

    text, image, document = request["messages"][-1]["content"]
    assert text == {"type": "text", "text": "Read this.", "cache_control": {"type": "ephemeral"}}
    assert image == {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    assert document["source"] == {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    assert document["title"] == "a.pdf"
    assert request["tools"][0]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"max_tokens": 7, "max_completion_tokens": 8}, {"max_tokens": 8}),
        ({"temperature": 1}, {"temperature": 1}),
        ({"temperature": 0.0, "top_p": 0.5}, {"temperature": 0.0, "top_p": 0.5}),
        ({"stop": "END"}, {"stop_sequences": ["END"]}),
        ({"user": "u"}, {"metadata": {"user_id": "u"}}),
        ({"safety_identifier": "s"}, {"metadata": {"user_id": "s"}}),
        ({"user": "u", "metadata": {"user_id": "m"}}, {"metadata": {"user_id": "m"}}),
        ({"reasoning_effort": "low"}, {"output_config": {"effort": "low"}}),
        ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
        ({"response_format": {"type": "text"}}, {}),
        ({"top_k": 5, "a_field_of_tomorrow": [1]}, {"top_k": 5, "a_field_of_tomorrow": [1]}),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}, {}),
        ({"store": True, "prompt_cache_key": "k", "stream_options": {"include_usage": True}}, {}),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_build_request_field_becomes_its_counterpart(extra: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each of OpenAI's fields is said in the API's words; unknown ones travel as they are."""
    assert build(extra) == {**build(), **expected}


def test_build_request_streamed_call_asks_for_a_stream() -> None:
    """The call's own word counts."""
    assert build(stream=True)["stream"] is True


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, None),
        ("auto", None, {"type": "auto"}),
        ("none", False, {"type": "none"}),
        ("required", True, {"type": "any"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ({"type": "function", "function": {"name": "weather"}}, None, {"type": "tool", "name": "weather"}),
    ],
)
def test_build_request_tool_choice_is_translated(choice: Any, parallel: Any, expected: Any) -> None:
    """Every form of tool_choice, alone and with parallel calls switched off."""
    request = build({"tools": [_WEATHER], "tool_choice": choice, "parallel_tool_calls": parallel})

    assert request.get("tool_choice") == expected
    assert request["tools"] == [
        {
            "name": "weather",
            "description": "Weather of a city",
            "input_schema": _WEATHER["function"]["parameters"],  # type: ignore[index]
        }
    ]


_NEUTRAL = {
    "n": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "logit_bias": {},
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "modalities": ["text"],
    "verbosity": "medium",
}
_WITHOUT_COUNTERPART = {
    "n": 2,
    "logprobs": True,
    "top_logprobs": 3,
    "logit_bias": {"50256": -100},
    "seed": 0,
    "frequency_penalty": 0.1,
    "presence_penalty": -1,
    "audio": {"voice": "alloy"},
    "modalities": ["text", "audio"],
    "prediction": {"type": "content", "content": "x"},
    "verbosity": "low",
    "web_search_options": {},
    "functions": [],
    "function_call": "auto",
    "system": "x",
    "stop_sequences": ["x"],
}


@pytest.mark.parametrize("field", sorted(_WITHOUT_COUNTERPART))
def test_build_request_field_without_counterpart_is_refused_by_name(field: str) -> None:
    """What would change the answer is never dropped in silence; null and defaults ask for nothing."""
    with pytest.raises(InvalidRequest) as caught:
        build({field: _WITHOUT_COUNTERPART[field]})

    assert caught.value.param == field
    assert build({field: None}) == build()
    if field in _NEUTRAL:
        assert build({field: _NEUTRAL[field]}) == build()


def _message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", **fields}]}


def _call(**function: Any) -> dict[str, Any]:
    calls = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}", **function}}]
    return {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]}


def _part(**part: Any) -> dict[str, Any]:
    return _message(content=[part])


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "system", "content": "only"}]}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        (_message(), "messages[0].content"),
        (_message(content=""), "messages[0].content"),
        (_message(content=7), "messages[0].content"),
        (_message(content=["x"]), "messages[0].content[0]"),
        (_message(content="x", name="Ann"), "messages[0].name"),
        (_part(type="input_audio", input_audio={}), "messages[0].content[0].type"),
        (_part(type=["text"]), "messages[0].content[0].type"),
        (_part(type="text", text=None), "messages[0].content[0].text"),
        (_part(type="image_url", image_url="x"), "messages[0].content[0].image_url"),
        (_part(type="image_url", image_url={"url": "ftp://x"}), "messages[0].content[0].image_url.url"),
        (_part(type="image_url", image_url={"url": "data:image/png,x"}), "messages[0].content[0].image_url.url"),
        (_part(type="image_url", image_url={"url": "data:;base64,x"}), "messages[0].content[0].image_url.url"),
        (_part(type="file", file={"file_id": "file-1"}), "messages[0].content[0].file.file_data"),
        (_part(type="file", file={"file_data": "data:text/csv;base64,eA=="}), "messages[0].content[0].file.file_data"),
        (_call(arguments="{"), "messages[1].tool_calls[0].function.arguments"),
        (_call(arguments="[]"), "messages[1].tool_calls[0].function.arguments"),
        (_call(arguments='{"a":' * 9999), "messages[1].tool_calls[0].function.arguments"),
        (_call(arguments='"\ud800"'), "messages[1].tool_calls[0].function.arguments"),
        (_call(arguments=None), "messages[1].tool_calls[0].function.arguments"),
        (_call(name=1), "messages[1].tool_calls[0].function.name"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"stop": 7}, "stop"),
        ({"stop": ["x", 7]}, "stop[1]"),
        ({"user": 7}, "user"),
        ({"metadata": "x"}, "metadata"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [_WEATHER], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [_WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [_WEATHER], "parallel_tool_calls": 0}, "parallel_tool_calls"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning_effort": "minimal"}, "reasoning_effort"),
        ({"reasoning_effort": ["low"]}, "reasoning_effort"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"output_config": 1}, "output_config"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_build_request_wrong_field_is_named(extra: dict[str, Any], param: str) -> None:
    """The error points at the field, by the path a client would write."""
    with pytest.raises(InvalidRequest) as caught:
        build_request(make_call(**_body(extra)), _DEFAULT_MAX_TOKENS)

    assert caught.value.param == param


def test_build_request_body_that_is_no_object_is_refused() -> None:
    """A call without a decoded body cannot be translated."""
    with pytest.raises(InvalidRequest, match="JSON object"):
        build_request(make_call(body=None), _DEFAULT_MAX_TOKENS)


def _too_deep() -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize("make", [lambda: "\ud800", _too_deep], ids=["surrogate", "too_deep"])
def test_build_request_value_that_json_cannot_hold_is_refused(make: Callable[[], Any]) -> None:
    """Not a crash of the encoder, whichever field it came in."""
    with pytest.raises(InvalidRequest, match="not Unicode"):
        build_request(make_call(**_body({"thinking": make()})), _DEFAULT_MAX_TOKENS)


def test_build_request_arguments_travel_as_written() -> None:
    """Numbers that a float cannot hold stay exact."""
    body = build_request(make_call(extra=_call(arguments='{"id": 12345678901234567890123, "x": 1.10}')), 1)

    assert b'"input":{"id": 12345678901234567890123, "x": 1.10}' in body


def test_build_request_silent_assistant_turn_leaves_no_turn() -> None:
    """An answer without content, which Claude itself gives, does not spoil the rest of a conversation."""
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": None, "refusal": None},
        {"role": "user", "content": "b"},
    ]

    request = build({"messages": messages})

    assert request["messages"] == [{"role": "user", "content": [_text("a"), _text("b")]}]


def test_build_request_empty_text_parts_are_left_out() -> None:
    """The API refuses empty blocks, and they say nothing."""
    parts = [_text(""), _text("a"), _text("")]
    messages = [{"role": role, "content": parts} for role in ("system", "user", "assistant")]

    request = build({"messages": messages})

    assert [request["system"], *(turn["content"] for turn in request["messages"])] == [[_text("a")]] * 3


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _body(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Call fields with a body that need not be encodable."""
    body = {"model": "test-model", "messages": [{"role": "user", "content": "hello"}], **extra}
    return {"body": body, "raw": b"{}"}

"""Responses, OpenAI's newer API: read in the words of a chat, told in its own, whole and streamed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from backends.engine.errors import RequestRefused
from backends.engine.request import Event, Request, SamplingParams, TokenLogprob, TokenUsage
from backends.errors import ContextLengthExceeded, InvalidRequest
from backends.operations import Operation
from backends.serving.replies.parts import Head
from backends.serving.requests import Job, Model, plan
from backends.serving.tool_syntax import HERMES
from tests.support.calls import event_values, make_call
from tests.support.engine.fake_engine import Characters, make_model

HEAD = Head("resp_1", 1_700_000_000, "test-model", "fp")
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
USAGE = TokenUsage(prompt_tokens=5, cached_tokens=2, completion_tokens=3)
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def job_of(extra: dict[str, Any], model: Model | None = None) -> Job:
    """The job of a call that asks "hello", with this in its body."""
    stream = extra.get("stream", False)
    call = make_call(operation=Operation.RESPONSES, extra=extra, stream=stream, tenant="red")
    return plan(call, model or make_model(syntax=HERMES), HEAD)


def request_of(extra: dict[str, Any]) -> Request:
    """What it asks of the engine."""
    [request] = job_of(extra).requests
    return request


def rendered(extra: dict[str, Any]) -> dict[str, Any]:
    """What the model's chat template is given."""
    model = make_model(syntax=HERMES)
    job_of(extra, model)
    assert isinstance(model.vocabulary, Characters)
    return model.vocabulary.rendered[-1]


def events_of(texts: list[str], finish: Any = "stop", **fields: Any) -> list[Event]:
    """An event for each text; the last one ends the answer."""
    events = [Event(request_id="resp_1", text=text, usage=USAGE, **fields) for text in texts[:-1]]
    last = Event(request_id="resp_1", text=texts[-1], usage=USAGE, finish_reason=finish, is_last=True, **fields)
    return [*events, last]


def whole(extra: dict[str, Any], events: list[Event]) -> dict[str, Any]:
    """The response that these events become."""
    job = job_of(extra)
    for event in events:
        job.answer.take(event)
        assert job.answer.drain() == b""
    body: dict[str, Any] = json.loads(job.answer.finish())
    Response.model_validate(body)
    return body


def streamed(extra: dict[str, Any], events: list[Event]) -> list[dict[str, Any]]:
    """The stream that they become, each event read as it comes."""
    job = job_of({**extra, "stream": True})
    pieces = []
    for event in events:
        job.answer.take(event)
        pieces.append(job.answer.drain())
    stream = b"".join([*pieces, job.answer.finish()])
    names = [line[7:].decode() for line in stream.splitlines() if line.startswith(b"event: ")]
    told = event_values(stream)
    assert [each["type"] for each in told] == names
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    for each in told:
        EVENT.validate_python(each)
    return told


def test_response_asks_what_a_chat_would() -> None:
    """Text, instructions and options arrive as a chat's would; the tenant's cache is its own."""
    extra = {"instructions": "Be brief.", "max_output_tokens": 9, "temperature": 0, "top_p": 0.5, "seed": 3}

    request = request_of(extra)

    assert request.params == SamplingParams(max_tokens=9, temperature=0, top_p=0.5, seed=3)
    assert request.salt == b"red"
    assert rendered(extra)["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]


def test_response_items_become_messages() -> None:
    """What was said and called and answered before: calls belong to the message in front of them."""
    items = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "c", "annotations": []}],
        },
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "d"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "e"}]},
        {"type": "function_call", "call_id": "3", "name": "f", "arguments": "{}"},
    ]

    messages = rendered({"input": items})["messages"]

    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "Be kind."),
        ("user", "ab"),
        ("assistant", "c"),
        ("tool", "d"),
        ("tool", "e"),
        ("assistant", ""),
    ]
    assert [call["id"] for call in messages[2]["tool_calls"]] == ["1", "2"]
    assert messages[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert [message.get("tool_call_id") for message in messages[3:5]] == ["1", "2"]


def test_response_tools_are_told_as_templates_know_them() -> None:
    """Flat functions become a chat's; a choice that names one forces its arguments."""
    choice = {"type": "function", "name": "weather"}

    tools = rendered({"tools": [TOOL]})["tools"]
    request = request_of({"tools": [TOOL], "tool_choice": choice})

    function = {"name": "weather", "parameters": {"type": "object"}, "strict": True}
    assert tools == [{"type": "function", "function": function}]
    assert request.params.grammar == 'schema:{"type":"object"}'


def test_response_tools_that_are_no_functions_are_left_out_and_said() -> None:
    """Coding agents send some of their own beside their functions: the call goes on without these."""
    others = [{"type": kind} for kind in ("web_search", "local_shell", "web_search", "x\r\ny: z")]
    job = job_of({"tools": [*others, TOOL, {"type": "custom", "name": "apply_patch"}]})
    alone = job_of({"tools": others, "tool_choice": "auto"})

    assert job.skipped_tools == ("web_search", "local_shell", "other", "custom")
    assert rendered({"tools": [*others, TOOL]})["tools"] == rendered({"tools": [TOOL]})["tools"]
    assert alone.skipped_tools == ("web_search", "local_shell", "other")
    assert job_of({"tools": [TOOL]}).skipped_tools == ()


@pytest.mark.parametrize(
    ("form", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, "json"),
        ({"type": "json_schema", "name": "n", "schema": {"type": "array"}}, 'schema:{"type":"array"}'),
    ],
)
def test_response_format_holds_the_answer_to_it(form: dict[str, Any], grammar: str | None) -> None:
    """`text.format` is a chat's response_format in other words."""
    assert request_of({"text": {"format": form}}).params.grammar == grammar


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
        ({"conversation": "conv_0"}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"messages": [{}]}, "messages"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"temperature": 9}, "temperature"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_response_that_cannot_be_given_is_refused(extra: dict[str, Any], param: str) -> None:
    """What is kept elsewhere, built in, or wrong is named."""
    with pytest.raises(InvalidRequest) as refused:
        job_of(extra)

    assert refused.value.param == param


def test_response_without_its_input_is_refused() -> None:
    """The field that is missing is named."""
    call = make_call(operation=Operation.RESPONSES)
    call = msgspec.structs.replace(call, body={"model": "test-model"})

    with pytest.raises(InvalidRequest, match="input is missing"):
        plan(call, make_model(), HEAD)


def test_response_over_the_context_names_its_input() -> None:
    """The code that agents act on, and the field as it is called here."""
    with pytest.raises(ContextLengthExceeded) as refused:
        job_of({"input": "x" * 11}, make_model(max_context=10))

    assert refused.value.param == "input"


def test_response_schema_that_cannot_be_compiled_names_text_format() -> None:
    """The engine knows it by another name."""

    class Grammars:
        def json_object(self) -> str:
            return ""

        def json_schema(self, schema: Any) -> str:
            raise RequestRefused("response_format cannot be compiled: no", param="response_format")

    form = {"type": "json_schema", "name": "n", "schema": {}}

    with pytest.raises(RequestRefused, match=r"text\.format cannot be compiled") as refused:
        job_of({"text": {"format": form}}, replace(make_model(), grammars=Grammars()))

    assert refused.value.param == "text.format"


def test_response_whole_has_openais_shape() -> None:
    """A message, its usage, and the question's options said again."""
    asked = {"instructions": "Be brief.", "metadata": {"a": "b"}, "user": "u", "tools": [TOOL]}

    body = whole(asked, events_of(["Hi", " you"]))

    assert (body["id"], body["object"], body["created_at"]) == ("resp_1", "response", 1_700_000_000)
    assert (body["status"], body["error"], body["incomplete_details"]) == ("completed", None, None)
    text = {"type": "output_text", "text": "Hi you", "annotations": [], "logprobs": []}
    assert body["output"] == [
        {"id": "msg_10", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    ]
    assert body["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 8,
    }
    assert {name: body[name] for name in ("instructions", "metadata", "user", "store", "tool_choice")} == {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "user": "u",
        "store": False,
        "tool_choice": "auto",
    }


def test_response_stream_tells_of_a_message_in_order() -> None:
    """From created to completed; the last event has what the whole answer would be."""
    events = events_of(["Hi", "", " you"])

    told = streamed({}, events)

    assert [each["type"].removeprefix("response.") for each in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [each["delta"] for each in told if "delta" in each] == ["Hi", " you"]
    assert told[0]["response"]["status"] == "in_progress"
    assert told[2]["item"]["content"] == []
    assert told[-1]["response"] == whole({}, events)


def test_response_stream_tells_of_calls() -> None:
    """Text before them is closed first; each call is an item of its own."""
    events = events_of(["Well. ", CALL, "\n" + CALL])

    told = streamed({"tools": [TOOL]}, events)
    body = whole({"tools": [TOOL]}, events)

    assert [each["type"].removeprefix("response.") for each in told[4:-1]] == [
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"] * 2,
    ]
    assert [item["type"] for item in body["output"]] == ["message", "function_call", "function_call"]
    assert [item.get("arguments") for item in body["output"][1:]] == ['{"city": "Oslo"}'] * 2
    assert len({item["id"] for item in body["output"]} | {item.get("call_id") for item in body["output"]}) == 6
    assert told[-1]["response"] == body


@pytest.mark.parametrize(("texts", "said"), [(["cut sh"], "cut sh"), ([""], "")])
def test_response_cut_short_is_incomplete(texts: list[str], said: str) -> None:
    """It says why, as do its last event and its item; an answer of nothing is an empty message."""
    events = events_of(texts, "length")

    body = whole({}, events)
    told = streamed({}, events)

    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [(item["status"], item["content"][0]["text"]) for item in body["output"]] == [("incomplete", said)]
    assert told[-1]["type"] == "response.incomplete"


def test_response_logprobs_are_told_with_their_text() -> None:
    """Where they are included: with the delta, and again with the whole text."""
    logprobs = (TokenLogprob(ord("H"), -0.5, ((ord("x"), -0.25),)),)
    extra = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    events = events_of(["", "H"], logprobs=logprobs)

    body = whole(extra, events)
    told = streamed(extra, events)

    content = body["output"][0]["content"][0]
    assert [(each["token"], each["top_logprobs"][0]["token"]) for each in content["logprobs"]] == [("H", "x")] * 2
    assert [len(each["logprobs"]) for each in told if "delta" in each] == [2]


@pytest.mark.parametrize("texts", [["Hi"], ["Well. ", CALL]], ids=["message", "call"])
def test_response_keeps_openais_schema(texts: list[str], request: pytest.FixtureRequest) -> None:
    """Against the published description, body and every event."""
    path = Path(request.config.rootpath).parent / "shared" / "openai_spec" / "openai_trim.json"
    if not path.exists():
        pytest.skip("OpenAI's description is not at hand")
    components = msgspec.json.decode(path.read_bytes())["components"]
    extra = {"tools": [TOOL], "text": {"format": {"type": "text"}}}

    body = whole(extra, events_of(texts))
    told = streamed(extra, events_of(texts))

    def check(name: str, value: Any) -> None:
        Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": components}).validate(value)

    check("Response", body)
    names = {
        schema["properties"]["type"]["enum"][0]: name
        for name, schema in components["schemas"].items()
        if name.startswith("Response") and name.endswith("Event") and "type" in schema.get("properties", {})
    }
    for each in told:
        check(names[each["type"]], each)

"""From OpenAI's bodies to the engine's requests: every field arrives, and what is wrong is refused by its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backends.drafts.prediction import Prediction
from backends.engine.request import Request, SamplingParams
from backends.errors import ContextLengthExceeded, InvalidRequest, UnknownPath
from backends.operations import Operation
from backends.protocol import Priority
from backends.serving.replies.parts import Head
from backends.serving.requests import Model, plan
from backends.serving.tool_syntax import HERMES
from tests.support.calls import make_call
from tests.support.engine.fake_engine import Characters, make_model

HEAD = Head("id-1", 1_700_000_000, "test-model", "fp")
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def requests_of(
    extra: dict[str, Any], *, operation: Operation = Operation.CHAT, model: Model | None = None, **fields: Any
) -> list[Request]:
    """The engine's requests for a call that asks "hello", with `extra` in its body."""
    call = make_call(operation=operation, extra=extra, **fields)
    return list(plan(call, model or make_model(syntax=HERMES), HEAD).requests)


def params_of(extra: dict[str, Any], operation: Operation = Operation.CHAT) -> SamplingParams:
    """The sampling parameters of the one request that a body makes."""
    [request] = requests_of(extra, operation=operation)
    return request.params


def refusal(extra: dict[str, Any], operation: Operation = Operation.CHAT, model: Model | None = None) -> InvalidRequest:
    """How a body is refused."""
    with pytest.raises(InvalidRequest) as refused:
        requests_of(extra, operation=operation, model=model)
    return refused.value


def test_chat_without_options_takes_the_defaults() -> None:
    """A bare question asks for one answer, as OpenAI samples it, as long as it gets."""
    [request] = requests_of({})

    assert request == Request(id="id-1", prompt=tuple(map(ord, "hello")), params=SamplingParams())


@pytest.mark.parametrize(
    ("extra", "operation", "param"),
    [
        ({"logprobs": True, "top_logprobs": 20, "n": 128, "max_tokens": 4096}, Operation.CHAT, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 20, "n": 2}, Operation.CHAT, "top_logprobs"),
        ({"logprobs": 20, "n": 128, "max_tokens": 4096}, Operation.COMPLETION, "logprobs"),
        ({"logprobs": 1, "n": 1, "best_of": 128, "max_tokens": 20_000}, Operation.COMPLETION, "logprobs"),
    ],
    ids=["chat", "chat to its end", "completion", "best of many"],
)
def test_logprobs_of_a_whole_answer_are_bounded(extra: dict[str, Any], operation: Operation, param: str) -> None:
    """They are kept until it is told; a stream tells them as they come, and may have as many as it likes."""
    refused = refusal(extra, operation)

    assert refused.param == param
    assert "set stream to true" in refused.message
    if "best_of" not in extra:
        assert requests_of(extra, operation=operation, stream=True)
    assert requests_of({**extra, "max_tokens": 1000}, operation=operation)


@pytest.mark.parametrize(
    "operation", [Operation.CHAT, Operation.COMPLETION, Operation.EMBEDDING], ids=lambda operation: operation.value
)
def test_priority_puts_a_call_behind_others_and_not_before(operation: Operation) -> None:
    """Whoever asks for the most goes no sooner than who asks for nothing; a lower key's calls go behind these."""
    order = [
        requests_of({"priority": asked}, operation=operation, priority=allowed)[0].priority
        for allowed, asked in [
            (Priority.HIGH, -1000),
            (Priority.HIGH, None),
            (Priority.NORMAL, -1000),
            (Priority.NORMAL, None),
            (Priority.NORMAL, 1000),
            (Priority.LOW, -1000),
            (Priority.LOW, 1000),
        ]
    ]

    assert order == sorted(order)
    assert order[2] == order[3] == 0
    assert len(set(order)) == 6


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temperature": 0}, SamplingParams(temperature=0)),
        ({"top_p": 0.5, "top_k": 7, "min_p": 0.1}, SamplingParams(top_p=0.5, top_k=7, min_p=0.1)),
        ({"top_k": -1}, SamplingParams()),
        ({"presence_penalty": 1, "frequency_penalty": -1}, SamplingParams(presence_penalty=1, frequency_penalty=-1)),
        ({"repetition_penalty": 1.2, "seed": 7}, SamplingParams(repetition_penalty=1.2, seed=7)),
        ({"stop": "x"}, SamplingParams(stop=("x",))),
        ({"stop": ["x", "yz"], "stop_token_ids": [3]}, SamplingParams(stop=("x", "yz"), stop_token_ids=(3,))),
        ({"stop_token_ids": [3, 1, 3] * 9}, SamplingParams(stop_token_ids=(3, 1))),
        ({"include_stop_str_in_output": True, "ignore_eos": True}, SamplingParams(include_stop=True, ignore_eos=True)),
        ({"logit_bias": {"7": -100, "8": 1.5}}, SamplingParams(logit_bias={7: -100, 8: 1.5})),
        ({"max_tokens": 5, "min_tokens": 2}, SamplingParams(max_tokens=5, min_tokens=2)),
        ({"max_tokens": 5, "max_completion_tokens": 9}, SamplingParams(max_tokens=9)),
        ({"logprobs": True}, SamplingParams(logprobs=0)),
        ({"logprobs": True, "top_logprobs": 3}, SamplingParams(logprobs=3)),
        ({"logprobs": False}, SamplingParams()),
        ({"response_format": {"type": "text"}}, SamplingParams()),
        ({"response_format": {"type": "json_object"}}, SamplingParams(grammar="json")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}},
            SamplingParams(grammar='schema:{"type":"null"}'),
        ),
        (
            {"temperature": None, "stop": None, "n": None, "tools": None, "audio": None, "suffix": None},
            SamplingParams(),
        ),
        ({"user": "u", "store": True, "metadata": {"a": "b"}, "unheard_of": [1]}, SamplingParams()),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_chat_sampling_fields_arrive(given: dict[str, Any], expected: SamplingParams) -> None:
    """Each field, OpenAI's and vLLM's, becomes what the engine calls it; null is the default."""
    assert params_of(given) == expected


def test_chat_other_fields_arrive() -> None:
    """n, priority, prediction and the tenant are the request's own."""
    prediction = {"type": "content", "content": [{"type": "text", "text": "ab"}]}

    [request] = requests_of({"n": 3, "priority": 2, "prediction": prediction}, tenant="red")

    assert (request.n, request.priority, request.prediction, request.salt) == (3, 2, (97, 98), b"red")


def test_chat_predicted_text_arrives_where_the_client_predicts_nothing() -> None:
    """What the gateway expects is proposed as the client's prediction would be, which comes first."""
    own = {"prediction": {"type": "content", "content": "c"}}

    [expected] = requests_of({}, predicted=Prediction("ab", "turn"))
    [asked] = requests_of(own, predicted=Prediction("ab", "turn"))

    assert (expected.prediction, asked.prediction) == ((97, 98), (99,))


def test_chat_messages_reach_the_template_in_its_words() -> None:
    """Parts are joined, the developer is the system, arguments are objects, and template options pass."""
    model = make_model(syntax=HERMES)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    options = {"add_generation_prompt": False, "chat_template_kwargs": {"enable_thinking": False}}

    requests_of({"messages": messages, "tools": TOOLS, **options}, model=model)

    assert isinstance(model.vocabulary, Characters)
    assert model.vocabulary.rendered == [
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "ab", "name": "ann"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{**call, "function": {"name": "f", "arguments": {"a": 1}}}],
                },
                {"role": "tool", "content": "42", "tool_call_id": "c1"},
                {"role": "assistant", "content": "no"},
            ],
            "tools": TOOLS,
            "add_generation_prompt": False,
            "enable_thinking": False,
        }
    ]


@pytest.mark.parametrize(
    ("choice", "told", "grammar"),
    [
        (None, True, None),
        ("auto", True, None),
        ("none", False, None),
        ("required", True, "weather"),
        ({"type": "function", "function": {"name": "weather"}}, True, 'schema:{"type":"object"}'),
    ],
    ids=["default", "auto", "none", "required", "named"],
)
def test_chat_tool_choice_decides_template_and_grammar(choice: Any, told: bool, grammar: str | None) -> None:
    """The model is told of tools unless it may call none, and held to a call where it must make one."""
    model = make_model(syntax=HERMES)

    [request] = requests_of({"tools": TOOLS, "tool_choice": choice}, model=model)

    assert isinstance(model.vocabulary, Characters)
    assert model.vocabulary.rendered[0]["tools"] == (TOOLS if told else None)
    assert (request.params.grammar is None) if grammar is None else (grammar in (request.params.grammar or ""))


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": True}, "max_completion_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"priority": 10**6}, "priority"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [PNG]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": ""}]}, "tools[0].type"),
        ({"tools": [{"type": "custom"}, {"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom"}], "tool_choice": "required"}, "tool_choice"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": dict.fromkeys(map(str, range(65)))}, "chat_template_kwargs"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"functions": [{}]}, "functions"),
        ({"audio": {"voice": "a"}}, "audio"),
        ({"modalities": ["audio"]}, "modalities[0]"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"prompt_logprobs": 2}, "prompt_logprobs"),
        ({"prediction": {"type": "content", "content": [PNG]}}, "prediction.content[0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_chat_what_is_wrong_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    """A wrong value, or a wish that cannot be met, is named and never dropped in silence."""
    error = refusal(given)

    assert (error.param, error.status) == (param, 400)
    assert param.partition("[")[0].partition(".")[0] in error.message


def test_chat_tools_without_a_template_for_them_are_refused() -> None:
    """A model that was never told of tools cannot call them."""
    assert refusal({"tools": TOOLS}, model=make_model(syntax=None)).param == "tools"


@pytest.mark.parametrize(
    ("given", "operation", "param"),
    [
        ({"max_tokens": 6}, Operation.CHAT, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 10}]}, Operation.CHAT, "messages"),
        ({"max_tokens": 6}, Operation.COMPLETION, "prompt"),
        ({"prompt": ["a", "x" * 11], "max_tokens": 0, "echo": True}, Operation.COMPLETION, "prompt"),
        ({"input": "x" * 11}, Operation.EMBEDDING, "input"),
    ],
)
def test_prompt_over_the_context_is_refused_as_openai_does(
    given: dict[str, Any], operation: Operation, param: str
) -> None:
    """Agents and fallbacks act on this code, and on these words."""
    error = refusal(given, operation, make_model(max_context=10))

    assert isinstance(error, ContextLengthExceeded)
    assert (error.code, error.param) == ("context_length_exceeded", param)
    assert "maximum context length is 10 tokens" in error.message


def test_prompt_that_fills_the_context_is_taken() -> None:
    """The last token of the context can be used."""
    [request] = requests_of({"max_tokens": 5}, model=make_model(max_context=10))

    assert len(request.prompt) + (request.params.max_tokens or 0) == 10


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([97, 98], [(97, 98)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
        (["ab", [99]], [(97, 98), (99,)]),
    ],
    ids=["text", "texts", "tokens", "token-lists", "mixed"],
)
@pytest.mark.parametrize("operation", [Operation.COMPLETION, Operation.EMBEDDING])
def test_prompts_in_every_form_are_tokens(prompt: Any, expected: list[tuple[int, ...]], operation: Operation) -> None:
    """Texts are encoded, tokens are taken as they are; each prompt is a request of its own, in order."""
    field = "prompt" if operation is Operation.COMPLETION else "input"

    requests = requests_of({field: prompt}, operation=operation)

    assert [request.prompt for request in requests] == expected
    assert [request.id for request in requests] == [f"id-1-{number}" for number in range(len(expected))]


@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], [0x110000], [-1], [97, "a"], [[97], 98], [True], {"a": 1}, ["a"] * 2049]
)
@pytest.mark.parametrize("operation", [Operation.COMPLETION, Operation.EMBEDDING])
def test_prompts_that_are_none_are_refused(prompt: Any, operation: Operation) -> None:
    """Empty prompts, unknown tokens and mixtures are the caller's mistake."""
    field = "prompt" if operation is Operation.COMPLETION else "input"

    assert (refusal({field: prompt}, operation).param or "").startswith(field)


@pytest.mark.parametrize(
    ("given", "logprobs", "prompt_logprobs", "max_tokens"),
    [
        ({}, None, None, 16),
        ({"max_tokens": 3, "logprobs": 2}, 2, None, 3),
        ({"echo": True, "logprobs": 2}, 2, 2, 16),
        ({"echo": True, "max_tokens": 0}, None, None, 0),
        ({"prompt_logprobs": 4, "max_tokens": 0}, None, 4, 0),
        ({"prompt_logprobs": 4, "echo": True, "logprobs": 5}, 5, 5, 16),
    ],
)
def test_completion_logprobs_and_limits_arrive(
    given: dict[str, Any], logprobs: int | None, prompt_logprobs: int | None, max_tokens: int
) -> None:
    """echo asks for the prompt's log-probabilities too; a prompt can be read without output."""
    [request] = requests_of(given, operation=Operation.COMPLETION)

    assert (request.params.logprobs, request.prompt_logprobs) == (logprobs, prompt_logprobs)
    assert request.params.max_tokens == max_tokens


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt": None}, "prompt"),
    ],
)
def test_completion_what_is_wrong_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    """As with chat."""
    call = make_call(operation=Operation.COMPLETION, extra=given, stream=given.get("stream", False))

    with pytest.raises(InvalidRequest) as refused:
        plan(call, make_model(), HEAD)

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"dimensions": 5}, "dimensions"),
        ({"dimensions": 0}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_embedding_what_is_wrong_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    """A vector has only so many dimensions, and two forms."""
    assert refusal(given, Operation.EMBEDDING).param == param


def test_embedding_asks_for_the_configured_pooling() -> None:
    """How states become a vector is the operator's choice."""
    [request] = requests_of({}, operation=Operation.EMBEDDING)

    assert request.pooling == "mean"


def test_other_operations_are_unknown() -> None:
    """There is no answer that would be right."""
    with pytest.raises(UnknownPath):
        requests_of({}, operation=Operation.PASSTHROUGH)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"prompt": ["a"] * 100, "n": 21}, "n"),
        ({"prompt": ["a"] * 100, "best_of": 21}, "best_of"),
        ({"prompt": [[7] * 50_000] * 4, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": [[7] * 50_000] * 4, "echo": True, "logprobs": 20}, "logprobs"),
        ({"prompt": "a", "stop": ["x"] * 65}, "stop"),
        ({"prompt": "a", "stop": "x" * 1025}, "stop"),
    ],
)
def test_completion_of_more_than_memory_should_hold_is_refused(extra: dict[str, Any], param: str) -> None:
    """One call must not take the memory, or the engine's time, of all others."""
    assert refusal(extra, Operation.COMPLETION).param == param


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a": "\\ud800"}', '{"a": NaN}', "{"])
def test_chat_arguments_that_no_template_could_write_reach_it_as_their_text(arguments: str) -> None:
    """What an earlier answer called is history: a client that sends it back is answered, whatever stands in it."""
    model = make_model(syntax=HERMES)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}

    requests_of({"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}, model=model)

    assert isinstance(model.vocabulary, Characters)
    [message] = model.vocabulary.rendered[0]["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_chat_forced_arguments_are_an_object_where_their_schema_does_not_say() -> None:
    """Arguments are an object in every spelling of a call."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}}]

    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        assert '"type":"object","properties":{}' in (params_of({"tools": tools, "tool_choice": choice}).grammar or "")


@pytest.mark.parametrize(
    ("extra", "operation", "param"),
    [
        ({"messages": [{"role": "user", "content": ""}] * 101}, Operation.CHAT, "messages"),
        ({"tools": TOOLS * 100}, Operation.CHAT, "messages"),
        ({"input": [{"role": "user", "content": ""}] * 101}, Operation.RESPONSES, "input"),
    ],
)
def test_more_messages_and_tools_than_there_are_tokens_are_refused_before_they_are_written(
    extra: dict[str, Any], operation: Operation, param: str
) -> None:
    """A template takes seconds for hundreds of thousands, while other calls wait."""
    model = make_model(syntax=HERMES, max_context=100)

    error = refusal(extra, operation, model=model)

    assert (type(error), error.param) == (ContextLengthExceeded, param)
    assert isinstance(model.vocabulary, Characters)
    assert not model.vocabulary.rendered


def test_more_biases_than_there_are_tokens_are_refused_by_their_number() -> None:
    """Without a look at each."""
    error = refusal({"logit_bias": dict.fromkeys(map(str, range(11)), 1)}, model=replace(make_model(), vocab_size=10))

    assert (error.param, "11 entries" in error.message) == ("logit_bias", True)

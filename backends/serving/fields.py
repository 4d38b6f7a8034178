"""The fields of OpenAI's bodies that the engine acts on, and vLLM's additions to them; checked for type and range here.

Ranges of sampling parameters are the engine's own matter, but for temperature's, which is OpenAI's. What would change
the answer and cannot be done is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from backends.errors import InvalidRequest

MAX_INPUTS = 2048
"""Prompts of one completion call, or inputs of one embedding call; OpenAI's own limit. Answers of one call too."""
MAX_LOGPROBS = 4_000_000
"""Log-probabilities of prompts, and as many of answers that are told whole, that one call may ask for; each takes some
hundred bytes until the answer is written."""

Text = Annotated[str, Meta(min_length=1)]
_Stop = Annotated[str, Meta(min_length=1, max_length=1024)]
_Stops = Annotated[list[_Stop], Meta(max_length=64)]
Token = Annotated[int, Meta(ge=0)]
Tokens = list[Token]
Texts = str | Annotated[list[str | Token | Tokens], Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=1, le=128)]
Alternatives = Annotated[int, Meta(ge=0, le=20)]
TemplateVariables = Annotated[dict[str, Any], Meta(max_length=64)]


class JSONSchema(msgspec.Struct):
    """`response_format.json_schema`."""

    schema: dict[str, Any] | bool | None = None


class ResponseFormat(msgspec.Struct):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchema | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """What chat and completions share."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: _Stop | _Stops | None = None
    stop_token_ids: Tokens | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    n: _Count | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    response_format: ResponseFormat | None = None


class Part(msgspec.Struct):
    """A part of a message's content."""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct):
    """A function that an earlier answer called; `arguments` is JSON as text."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(msgspec.Struct):
    """A call of a tool in an earlier answer."""

    function: CalledFunction
    id: str = ""


class Message(msgspec.Struct):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class Function(msgspec.Struct):
    """A function that may be called."""

    name: Text
    parameters: dict[str, Any] | None = None


class OfferedTool(msgspec.Struct):
    """A tool that may be called."""

    type: Literal["function"]
    function: Function


class NamedFunction(msgspec.Struct):
    """The name of a function."""

    name: str


class NamedTool(msgspec.Struct):
    """A `tool_choice` that names its tool."""

    type: Literal["function"]
    function: NamedFunction


class PredictedContent(msgspec.Struct):
    """`prediction`: text that the answer will probably repeat."""

    type: Literal["content"]
    content: str | list[Part]


class ChatFields(SamplingFields, kw_only=True):
    """A chat completion's body."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    prediction: PredictedContent | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    modalities: list[Literal["text"]] | None = None


class CompletionFields(SamplingFields, kw_only=True):
    """A completion's body."""

    prompt: Texts
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    echo: bool | None = None
    logprobs: Alternatives | None = None
    prompt_logprobs: Alternatives | None = None
    return_token_ids: bool | None = None


class EmbeddingFields(msgspec.Struct, kw_only=True):
    """An embedding's body."""

    input: Texts
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None


Shape = TypeVar("Shape", bound=msgspec.Struct)

REFUSED_SAMPLING = {
    "use_beam_search": "beam search is not done here",
    "structured_outputs": "give a response_format instead",
    "guided_json": "give a response_format instead",
    "guided_regex": "only response_format can guide an answer here",
    "guided_choice": "only response_format can guide an answer here",
    "guided_grammar": "only response_format can guide an answer here",
}
REFUSED_CHAT = {
    **REFUSED_SAMPLING,
    "audio": "this model answers with text only",
    "functions": "it is obsolete; give tools instead",
    "function_call": "it is obsolete; give tool_choice instead",
    "web_search_options": "this model cannot search the web",
    "chat_template": "the model's own template is used; chat_template_kwargs can be given",
    "continue_final_message": "the last message cannot be continued; use completions for that",
    "prompt_logprobs": "only completions report it",
}
REFUSED_COMPLETION = {**REFUSED_SAMPLING, "suffix": "this model cannot fill in the middle"}
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def read_fields(body: Mapping[str, Any] | None, shape: type[Shape], refused: Mapping[str, str]) -> Shape:
    """The fields of a body; `refused` has the ones that cannot be used, each with the reason.

    Raises: InvalidRequest, its `param` naming the field.
    """
    if body is None:
        raise InvalidRequest("the body is not a JSON object")
    for name, reason in refused.items():
        # What is null, false or empty asks for nothing.
        if body.get(name):
            raise InvalidRequest(f"{name} cannot be used: {reason}", param=name)
    return convert(body, shape)


def convert(value: Mapping[str, Any], shape: type[Shape], place: str = "") -> Shape:
    """The fields of an object that stands at `place` in a body.

    Raises: InvalidRequest, its `param` naming the field.
    """
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), place) from None


def _invalid(problem: str, place: str) -> InvalidRequest:
    match = _PLACE.match(problem)
    assert match is not None, "the pattern takes any text"
    what = match["what"]
    missing = _MISSING.match(what)
    path = ".".join(part for part in (place, match["path"], missing and missing[1]) if part)
    if missing is not None:
        return InvalidRequest(f"{path} is missing", param=path)
    return InvalidRequest(f"{path}: {what[:1].lower()}{what[1:].replace('`', '')}", param=path)

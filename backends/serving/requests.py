"""From a call in OpenAI's words to requests of the engine, and to the object that puts its answer together.

Runs in a worker thread: templates and tokenizers take milliseconds for long prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from msgspec import structs

from backends.engine.errors import RequestRefused
from backends.engine.request import Pooling, Request, SamplingParams
from backends.errors import ContextLengthExceeded, InvalidRequest, UnknownPath
from backends.operations import Operation
from backends.priorities.asked import bounded
from backends.protocol import Call, Priority
from backends.resume import RESUME_FIELD, Resume
from backends.serving.drafted import DraftedStream
from backends.serving.fields import (
    MAX_INPUTS,
    MAX_LOGPROBS,
    REFUSED_CHAT,
    REFUSED_COMPLETION,
    ChatFields,
    CompletionFields,
    EmbeddingFields,
    NamedTool,
    ResponseFormat,
    SamplingFields,
    read_fields,
)
from backends.serving.messages import predicted_text, template_messages, tools_in_use
from backends.serving.prompts import check_count, check_length, read_prompts
from backends.serving.replies.chat_reply import ChatAnswer, ChatShape, ChatStream, Parser
from backends.serving.replies.completion_reply import CompletionAnswer, CompletionShape, CompletionStream
from backends.serving.replies.embedding_reply import EmbeddingAnswer
from backends.serving.replies.parts import Head, ReplyBuilder, Vocabulary
from backends.serving.replies.response_reply import ResponseAnswer, ResponseStream
from backends.serving.response_fields import chat_tools, echoed, read_response
from backends.serving.resumed import MarkedStream, requested_resume, resumed_head
from backends.serving.skipped_tools import without_foreign_tools
from backends.serving.tool_syntax import ForcedCall, ToolParser, ToolSyntax, forced_schema

_RANKS_BETWEEN = 10_000
_DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's, where a completion names no `max_tokens`; a chat goes on to its end."""


class Grammars(Protocol):
    """Names for the two forms of an answer that the engine can hold a model to, as its grammar library takes them."""

    def json_object(self) -> str:
        """Any JSON object."""

    def json_schema(self, schema: Mapping[str, Any] | bool) -> str:
        """Values of a JSON schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is known of the model that is served."""

    vocabulary: Vocabulary
    vocab_size: int
    max_context: int
    grammars: Grammars
    syntax: ToolSyntax | None
    call_token: int | None = None
    """The token that begins a call in that syntax, where it is one that answers do not show."""
    pooling: Pooling
    num_dimensions: int
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Parameters of calls that do not give them."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one call asks of the engine."""

    requests: Sequence[Request]
    answer: ReplyBuilder
    skipped_tools: Sequence[str] = ()
    """Types of the tools that the model was not told of, because it cannot call such ones."""
    drafted: DraftedStream | None = None
    """The answer, where drafts may be pushed onto it."""


def plan(call: Call, model: Model, head: Head) -> Job:
    """The job that answers a call; `head` says what its requests' ids begin with.

    Raises: InvalidRequest, naming the field; UnknownPath for an operation that no model has.
    """
    builders: dict[Operation, Callable[[Call, Model, Head], Job]] = {
        Operation.CHAT: _chat,
        Operation.RESPONSES: _response,
        Operation.COMPLETION: _completion,
        Operation.EMBEDDING: _embedding,
    }
    build = builders.get(call.operation)
    if build is None:
        raise UnknownPath(f"a model that is served here does not answer {call.method} {call.path}")
    if call.body is None:
        return build(call, model, head)
    if call.body.get("stream_options") is not None and not call.stream:
        raise InvalidRequest("stream_options is for streams; set stream to true", param="stream_options")
    body, skipped = without_foreign_tools(call.body)
    if skipped:
        call = structs.replace(call, body=body)
    begun = requested_resume(call)
    if begun is not None and begun.tokens:
        head = resumed_head(head, begun)
    job = build(call, model, head)
    if begun is not None:
        job = _resumable(job, begun, head)
    if call.drafts and _is_single_stream(job):
        drafted = DraftedStream(job.answer, request := replace(job.requests[0], by_rounds=call.by_rounds))
        job = replace(job, requests=[request], answer=drafted, drafted=drafted)
    return replace(job, skipped_tools=skipped) if skipped else job


def _resumable(job: Job, begun: Resume, head: Head) -> Job:
    """The job as one that can go on elsewhere, from where it has begun; the job itself where it is of another form.

    Raises: InvalidRequest where it is, and has begun.
    """
    if _is_single_stream(job) and isinstance(stream := job.answer, ChatStream | CompletionStream):
        requests = [replace(job.requests[0], emitted=begun.tokens)]
        return replace(job, requests=requests, answer=MarkedStream(stream, head))
    if begun.tokens:
        raise InvalidRequest("only a single streamed answer of chat or completions can go on", param=RESUME_FIELD)
    return job


def _is_single_stream(job: Job) -> bool:
    first, *others = job.requests
    is_stream = isinstance(job.answer, ChatStream | CompletionStream | MarkedStream)
    return is_stream and not others and (first.best_of or first.n) == 1


def _chat(call: Call, model: Model, head: Head) -> Job:
    fields = read_fields(call.body, ChatFields, REFUSED_CHAT)
    assert call.body is not None, "it has just been read"
    if fields.top_logprobs is not None and not fields.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    request, shape = _turn(fields, tools_in_use(fields, call.body.get("tools")), call, model, head)
    make = ChatStream if call.stream else ChatAnswer
    return Job([request], make(head, shape, model.vocabulary))


def _response(call: Call, model: Model, head: Head) -> Job:
    fields, chat = read_response(call.body)
    assert call.body is not None, "it has just been read"
    tools = tools_in_use(chat, chat_tools(fields.tools or ()))
    try:
        request, shape = _turn(chat, tools, call, model, head)
    except ContextLengthExceeded as error:
        raise ContextLengthExceeded(error.message, param="input") from error
    except RequestRefused as error:
        # The engine and its templates know these by a chat's names.
        param = {"response_format": "text.format", "messages": "input"}.get(error.param or "", error.param)
        message = str(error).replace("response_format", "text.format")
        raise RequestRefused(message, param=param, code=error.code) from error
    make = ResponseStream if call.stream else ResponseAnswer
    return Job([request], make(head, shape, model.vocabulary, echoed(fields, call.body, model.sampling)))


def _turn(
    fields: ChatFields, tools: list[dict[str, Any]] | None, call: Call, model: Model, head: Head
) -> tuple[Request, ChatShape]:
    """What a chat asks of the engine for the model's turn, and the form in which it is told; `tools` are in use."""
    if tools and model.syntax is None:
        raise InvalidRequest("this model's chat template knows no tools", param="tools")
    check_count(len(fields.messages), len(tools or ()), model.max_context)
    messages = template_messages(fields.messages)
    template = dict(fields.chat_template_kwargs or {})
    if template.keys() & {"messages", "tools", "add_generation_prompt", "tokenize"}:
        raise InvalidRequest("chat_template_kwargs names what has a field of its own", param="chat_template_kwargs")
    asks_for_answer = fields.add_generation_prompt is not False
    prompt = model.vocabulary.apply_chat_template(messages, tools, asks_for_answer, **template)
    make_parser, grammar = _tool_plan(fields, model) if tools else (None, None)
    max_tokens = fields.max_completion_tokens or fields.max_tokens
    check_length(len(prompt), max_tokens, model.max_context, "messages")
    logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    if not call.stream:
        _check_logprobs(logprobs, fields.n or 1, max_tokens, model.max_context - len(prompt), "top_logprobs")
    params = _sampling(fields, model, max_tokens, logprobs, grammar or _grammar(fields.response_format, model))
    likely = predicted_text(fields.prediction, call.predicted, model.max_context)
    request = Request(
        id=head.request_id,
        prompt=tuple(prompt),
        params=params,
        n=fields.n or 1,
        salt=call.tenant.encode(),
        priority=_rank(call, fields.priority),
        prediction=tuple(model.vocabulary.encode(likely, add_special_tokens=False))[: model.max_context],
    )
    shape = ChatShape(
        num_choices=request.n,
        top_logprobs=logprobs,
        has_prediction=fields.prediction is not None,
        make_parser=make_parser,
        has_parallel_calls=fields.parallel_tool_calls is not False,
        call_id_length=model.syntax.id_length if model.syntax is not None else 0,
        call_token=model.call_token,
        call_tag=model.syntax.start if model.syntax is not None else "",
    )
    return request, shape


def _check_logprobs(top: int | None, num_answers: int, max_tokens: int | None, room: int, param: str) -> None:
    """Raises: InvalidRequest where answers that are told whole could have more of them than one call may have."""
    if top is None:
        return
    number = num_answers * min(room if max_tokens is None else max_tokens, room) * (1 + top)
    if number > MAX_LOGPROBS:
        raise InvalidRequest(
            f"{number} log-probabilities may come to be told; a whole answer has at most {MAX_LOGPROBS}: "
            "give a smaller max_tokens, n or number of them, or set stream to true",
            param=param,
        )


def _rank(call: Call, asked: int | None) -> int:
    """The lowest is first: by what the call's key may have, and within that by its own number, up to 1000."""
    return _RANKS_BETWEEN * (call.priority - Priority.NORMAL) + bounded(asked or 0, call.priority)


def _tool_plan(fields: ChatFields, model: Model) -> tuple[Callable[[], Parser], str | None]:
    """How calls are found in the answer, and the grammar that forces one where `tool_choice` demands it."""
    choice, tools = fields.tool_choice, fields.tools or []
    parameters = {tool.function.name: {"type": "object", **(tool.function.parameters or {})} for tool in tools}
    if isinstance(choice, NamedTool):
        name = choice.function.name
        return lambda: ForcedCall(name), _call_grammar(parameters[name], model)
    if choice == "required":
        return lambda: ForcedCall(None), _call_grammar(forced_schema(parameters), model)
    syntax = model.syntax
    assert syntax is not None, "tools were refused without one"
    return lambda: ToolParser(syntax), None


def _call_grammar(schema: Mapping[str, Any], model: Model) -> str:
    try:
        return model.grammars.json_schema(schema)
    except RequestRefused as error:
        # The engine takes every grammar for a response format.
        raise InvalidRequest(str(error).replace("response_format", "the tools' parameters"), param="tools") from error


def _completion(call: Call, model: Model, head: Head) -> Job:
    fields = read_fields(call.body, CompletionFields, REFUSED_COMPLETION)
    n, best_of = fields.n or 1, fields.best_of
    if best_of is not None and best_of < n:
        raise InvalidRequest(f"best_of is {best_of}; it must be at least n, which is {n}", param="best_of")
    if best_of is not None and best_of > n and call.stream:
        raise InvalidRequest(
            "best_of cannot be streamed: which answers are the best is known at the end", param="best_of"
        )
    has_output = fields.max_tokens != 0
    if not has_output and not fields.echo and fields.prompt_logprobs is None:
        raise InvalidRequest(
            "max_tokens is 0; that asks for something only with echo or prompt_logprobs", param="max_tokens"
        )
    max_tokens = _DEFAULT_COMPLETION_TOKENS if fields.max_tokens is None else fields.max_tokens
    known = [
        number for number in (fields.prompt_logprobs, fields.logprobs if fields.echo else None) if number is not None
    ]
    params = _sampling(fields, model, max_tokens, fields.logprobs, _grammar(fields.response_format, model))
    prompts = read_prompts(fields.prompt, model, "prompt", max_tokens)
    if len(prompts) * (best_of or n) > MAX_INPUTS:
        problem = f"{len(prompts)} prompts with {best_of or n} answers each; at most {MAX_INPUTS} are taken in one call"
        raise InvalidRequest(problem, param="n" if best_of is None else "best_of")
    if not call.stream:
        _check_logprobs(fields.logprobs, len(prompts) * (best_of or n), max_tokens, model.max_context, "logprobs")
    num_known = sum(map(len, prompts)) * (1 + max(known)) if known else 0
    if num_known > MAX_LOGPROBS:
        problem = (
            f"{num_known} log-probabilities of prompts are asked for; at most {MAX_LOGPROBS} are taken in one call"
        )
        raise InvalidRequest(problem, param="prompt_logprobs" if fields.prompt_logprobs is not None else "logprobs")
    requests = [
        Request(
            id=f"{head.request_id}-{number}",
            prompt=prompt,
            params=params,
            n=n,
            best_of=best_of,
            prompt_logprobs=max(known) if known else None,
            salt=call.tenant.encode(),
            priority=_rank(call, fields.priority),
            continues_text=True,
        )
        for number, prompt in enumerate(prompts)
    ]
    shape = CompletionShape(
        prompts={request.id: request.prompt for request in requests},
        num_choices=n,
        logprobs=fields.logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        echo=fields.echo is True,
        tells_tokens=fields.return_token_ids is True,
        has_output=has_output,
    )
    make = CompletionStream if call.stream else CompletionAnswer
    return Job(requests, make(head, shape, model.vocabulary))


def _embedding(call: Call, model: Model, head: Head) -> Job:
    fields = read_fields(call.body, EmbeddingFields, {})
    if fields.dimensions is not None and fields.dimensions > model.num_dimensions:
        problem = f"dimensions is {fields.dimensions}; this model's vectors have {model.num_dimensions}"
        raise InvalidRequest(problem, param="dimensions")
    prompts = read_prompts(fields.input, model, "input", 0)
    requests = [
        Request(
            id=f"{head.request_id}-{number}",
            prompt=prompt,
            params=SamplingParams(max_tokens=0),
            pooling=model.pooling,
            salt=call.tenant.encode(),
            priority=_rank(call, fields.priority),
        )
        for number, prompt in enumerate(prompts)
    ]
    answer = EmbeddingAnswer(
        call.model,
        [request.id for request in requests],
        dimensions=fields.dimensions,
        is_base64=fields.encoding_format == "base64",
    )
    return Job(requests, answer)


def _grammar(wanted: ResponseFormat | None, model: Model) -> str | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return model.grammars.json_object()
    schema = wanted.json_schema.schema if wanted.json_schema is not None else None
    if schema is None:
        raise InvalidRequest("response_format.json_schema.schema is missing", param="response_format")
    return model.grammars.json_schema(schema)


_MOST_DIGITS = 10  # of a token id
_PLAIN = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    "min_tokens",
)


def _sampling(
    fields: SamplingFields, model: Model, max_tokens: int | None, logprobs: int | None, grammar: str | None
) -> SamplingParams:
    given: dict[str, Any] = dict(model.sampling)
    given.update({name: getattr(fields, name) for name in _PLAIN if getattr(fields, name) is not None})
    if given.get("top_k") == -1:
        # vLLM's other way to say "off".
        given["top_k"] = 0
    stop = fields.stop or ()
    return SamplingParams(
        max_tokens=max_tokens,
        logit_bias=_logit_bias(fields.logit_bias or {}, model.vocab_size),
        seed=fields.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(dict.fromkeys(fields.stop_token_ids or ())),
        include_stop=fields.include_stop_str_in_output is True,
        ignore_eos=fields.ignore_eos is True,
        logprobs=logprobs,
        grammar=grammar,
        **given,
    )


def _logit_bias(given: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    if len(given) > vocab_size:
        problem = f"logit_bias has {len(given)} entries; this model has {vocab_size} tokens"
        raise InvalidRequest(problem, param="logit_bias")
    for token in given:
        if not (token.isascii() and token.isdecimal()) or len(token) > _MOST_DIGITS:
            raise InvalidRequest(f'logit_bias has the key "{token}"; keys are token ids', param="logit_bias")
    return {int(token): bias for token, bias in given.items()}

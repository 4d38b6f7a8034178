"""What the scripted backend says: answers in OpenAI's shapes that follow from the request alone.

One word counts as one token, here and in the usage it reports. When and whether an answer arrives is `script.py`.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import sys
from array import array
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from backends.charges.usage import Usage
from backends.errors import InvalidRequest, UnknownPath
from backends.operations import Operation
from backends.protocol import Call
from backends.sse import DONE_EVENT, encode_event

_DEFAULT_DIMENSIONS = 256
_MAX_ECHO_CHARACTERS = 2000
_WORD = re.compile(r"\S+\s*|\s+")
_FIELD = re.compile(r"(?:field `|\$\.)(\w+)")

_Limit = Annotated[int, msgspec.Meta(ge=1)] | None
_Count = Annotated[int, msgspec.Meta(ge=1, le=128)] | None
_Texts = str | Annotated[list[str | int | list[int]], msgspec.Meta(min_length=1, max_length=2048)]
_Head = dict[str, Any]


class ScriptedAnswer(msgspec.Struct, frozen=True):
    """One answer: the events of a stream, or a single piece that is the whole body."""

    usage: Usage
    pieces: Iterator[bytes]


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    role: str = "user"
    content: str | list[_Part] | None = None


class _ChatRequest(msgspec.Struct):
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    n: _Count = None
    max_tokens: _Limit = None
    max_completion_tokens: _Limit = None


class _CompletionRequest(msgspec.Struct):
    prompt: _Texts = ""
    n: _Count = None
    max_tokens: _Limit = None


class _EmbeddingRequest(msgspec.Struct):
    input: _Texts
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    encoding_format: Literal["float", "base64"] | None = None


class _ResponsesRequest(msgspec.Struct):
    input: str | list[_Message]
    max_output_tokens: _Limit = None


_Request = TypeVar("_Request", _ChatRequest, _CompletionRequest, _EmbeddingRequest, _ResponsesRequest)


def answer(call: Call, reply: str | None, *, number: int, created: int) -> ScriptedAnswer:
    """The answer to a call: `reply`, or a sentence that says who speaks and repeats the question.

    `number` makes the answer's id, `created` is in Unix seconds.
    Raises: UnknownPath for an operation it does not know, InvalidRequest for a body it cannot use.
    """
    build = _BUILDERS.get(call.operation)
    if build is None:
        raise UnknownPath(f"the scripted backend does not answer {call.method} {call.path}")
    return build(call, reply, number, created)


def _parse(call: Call, shape: type[_Request]) -> _Request:
    try:
        return msgspec.convert(call.body, shape)
    except msgspec.ValidationError as error:
        field = _FIELD.search(str(error))
        raise InvalidRequest(str(error), param=field[1] if field else None) from error


def _text_of(message: _Message) -> str:
    if isinstance(message.content, list):
        return " ".join(part.text for part in message.content if part.text)
    return message.content or ""


def _texts(value: str | list[str | int | list[int]]) -> list[str]:
    """The texts of a prompt or an input; token ids count as words."""
    if isinstance(value, str):
        return [value]
    texts = [" ".join(map(str, item)) if isinstance(item, list) else str(item) for item in value]
    return [" ".join(texts)] if isinstance(value[0], int) else texts


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _speak(reply: str | None, said: str, limit: int | None) -> tuple[list[str], bool]:
    """The words of an answer, and whether `limit` cut them short."""
    if reply is None:
        quote = said if len(said) <= _MAX_ECHO_CHARACTERS else said[:_MAX_ECHO_CHARACTERS] + "..."
        reply = f"This is Slipstream's scripted backend: no upstream is configured. You said: {quote}"
    words = _words(reply)
    if limit is not None and len(words) > limit:
        return words[:limit], True
    return words, False


def _json(value: object) -> Iterator[bytes]:
    yield msgspec.json.encode(value)


def _event(value: object) -> bytes:
    return encode_event(msgspec.json.encode(value))


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _last_usage(head: _Head, usage: Usage) -> Iterator[bytes]:
    yield _event({**head, "choices": [], "usage": _usage(usage)})
    yield DONE_EVENT


def _chat(call: Call, reply: str | None, number: int, created: int) -> ScriptedAnswer:
    request = _parse(call, _ChatRequest)
    said = next((_text_of(message) for message in reversed(request.messages) if message.role == "user"), "")
    words, is_cut = _speak(reply, said, request.max_completion_tokens or request.max_tokens)
    finish = "length" if is_cut else "stop"
    count = request.n or 1
    usage = Usage(sum(len(_words(_text_of(message))) for message in request.messages), count * len(words))
    head = {"id": f"chatcmpl-scripted-{number}", "object": "chat.completion", "created": created, "model": call.model}
    if call.stream:
        head["object"] = "chat.completion.chunk"
        return ScriptedAnswer(usage, _chat_events(head, words, finish, count, usage))
    message = {"role": "assistant", "content": "".join(words), "refusal": None}
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": finish} for index in range(count)
    ]
    return ScriptedAnswer(usage, _json({**head, "choices": choices, "usage": _usage(usage)}))


def _chat_events(head: _Head, words: list[str], finish: str, count: int, usage: Usage) -> Iterator[bytes]:
    def chunk(index: int, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event({**head, "choices": [choice]})

    for index in range(count):
        yield chunk(index, {"role": "assistant", "content": ""})
        for word in words:
            yield chunk(index, {"content": word})
        yield chunk(index, {}, finish)
    yield from _last_usage(head, usage)


def _completion(call: Call, reply: str | None, number: int, created: int) -> ScriptedAnswer:
    request = _parse(call, _CompletionRequest)
    prompts = _texts(request.prompt)
    spoken = [_speak(reply, prompt, request.max_tokens) for prompt in prompts for _ in range(request.n or 1)]
    usage = Usage(sum(len(_words(prompt)) for prompt in prompts), sum(len(words) for words, _ in spoken))
    head = {"id": f"cmpl-scripted-{number}", "object": "text_completion", "created": created, "model": call.model}
    if call.stream:
        return ScriptedAnswer(usage, _completion_events(head, spoken, usage))
    choices = [
        {"index": index, "text": "".join(words), "logprobs": None, "finish_reason": "length" if is_cut else "stop"}
        for index, (words, is_cut) in enumerate(spoken)
    ]
    return ScriptedAnswer(usage, _json({**head, "choices": choices, "usage": _usage(usage)}))


def _completion_events(head: _Head, spoken: list[tuple[list[str], bool]], usage: Usage) -> Iterator[bytes]:
    def chunk(index: int, text: str, finish_reason: str | None = None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return _event({**head, "choices": [choice]})

    for index, (words, is_cut) in enumerate(spoken):
        for word in words:
            yield chunk(index, word)
        yield chunk(index, "", "length" if is_cut else "stop")
    yield from _last_usage(head, usage)


def _embedding(call: Call, reply: str | None, number: int, created: int) -> ScriptedAnswer:
    request = _parse(call, _EmbeddingRequest)
    texts = _texts(request.input)
    tokens = sum(len(_words(text)) for text in texts)
    vectors = [_vector(text, request.dimensions or _DEFAULT_DIMENSIONS) for text in texts]
    is_base64 = request.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if is_base64 else vector.tolist()}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return ScriptedAnswer(Usage(tokens), _json({"object": "list", "data": data, "model": call.model, "usage": usage}))


def _vector(text: str, dimensions: int) -> array[float]:
    """A unit vector made of a hash of the text; fewer dimensions are a prefix of it, scaled to length one."""
    digest = hashlib.shake_256(text.encode()).digest(2 * dimensions)
    # Odd numerators: no coordinate is zero, so neither is the length.
    values = [(2 * int.from_bytes(digest[at : at + 2], "little") - 65535) / 65536 for at in range(0, 2 * dimensions, 2)]
    length = math.sqrt(math.fsum(value * value for value in values))
    return array("f", [value / length for value in values])


def _base64(vector: array[float]) -> str:
    if sys.byteorder == "big":
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode("ascii")


def _responses(call: Call, reply: str | None, number: int, created: int) -> ScriptedAnswer:
    request = _parse(call, _ResponsesRequest)
    messages = [_Message(content=request.input)] if isinstance(request.input, str) else request.input
    said = next((_text_of(message) for message in reversed(messages) if message.role == "user"), "")
    words, is_cut = _speak(reply, said, request.max_output_tokens)
    usage = Usage(sum(len(_words(_text_of(message))) for message in messages), len(words))
    head: _Head = {
        "id": f"resp_scripted_{number}",
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": call.model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }
    status = "incomplete" if is_cut else "completed"
    whole = {
        **head,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": [_item(number, status, [_content("".join(words))])],
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }
    return ScriptedAnswer(usage, _responses_events(head, whole, words, number) if call.stream else _json(whole))


def _item(number: int, status: str, content: list[dict[str, object]]) -> dict[str, object]:
    return {
        "id": f"msg_scripted_{number}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def _content(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _responses_events(head: _Head, whole: _Head, words: list[str], number: int) -> Iterator[bytes]:
    item = whole["output"][0]
    text = item["content"][0]["text"]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    events: list[tuple[str, dict[str, object]]] = [
        ("response.created", {"response": head}),
        ("response.in_progress", {"response": head}),
        ("response.output_item.added", {"output_index": 0, "item": _item(number, "in_progress", [])}),
        ("response.content_part.added", {**place, "part": _content("")}),
        *(("response.output_text.delta", {**place, "delta": word, "logprobs": []}) for word in words),
        ("response.output_text.done", {**place, "text": text, "logprobs": []}),
        ("response.content_part.done", {**place, "part": _content(text)}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        (f"response.{whole['status']}", {"response": whole}),
    ]
    for sequence_number, (name, fields) in enumerate(events):
        yield b"event: %b\n" % name.encode() + _event({"type": name, **fields, "sequence_number": sequence_number})


_BUILDERS: dict[Operation, Callable[[Call, str | None, int, int], ScriptedAnswer]] = {
    Operation.CHAT: _chat,
    Operation.COMPLETION: _completion,
    Operation.EMBEDDING: _embedding,
    Operation.RESPONSES: _responses,
}

OPERATIONS = frozenset(_BUILDERS)
"""What `answer` knows."""

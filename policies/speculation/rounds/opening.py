"""How an answer begins whose tokens can be told from then on: as its target's own stream that tells them, or by a first
token that is asked whole, of targets that tell them of whole answers only.

SGLang is one: with `stream` its chats refuse `return_token_ids` (https://github.com/sgl-project/sglang/pull/30917).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from backends.protocol import Call, Headers, Reply
from backends.sse import encode_event
from policies.speculation.rounds.verdicts import ToldChoice, checked, is_token
from policies.speculation.rounds.words import ChunkWriter, Words

EVENTS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
_OF_ONE_TOKEN = ("max_tokens", "max_completion_tokens")


class Begun(NamedTuple):
    """The tokens of a prompt and of an answer's beginning, and the events that show the latter."""

    prompt: list[int]
    tokens: list[int]
    shown: bytes


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(ToldChoice):
    message: _Message = msgspec.field(default_factory=_Message)
    prompt_token_ids: list[int] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    id: str = ""
    created: int = 0
    model: str = ""
    prompt_token_ids: list[int] | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def telling_tokens(call: Call) -> Call:
    """The call as one whose stream tells its tokens."""
    return _with(call, {"return_token_ids": True})


def of_one_token(call: Call) -> Call:
    """The call as one for the first token of its answer, whole."""
    assert call.body is not None, "it fits"
    most = {name: 1 for name in _OF_ONE_TOKEN if name in call.body}
    alone = _with(call, {"return_token_ids": True, "stream": False, **most}, without="stream_options")
    return structs.replace(alone, stream=False, include_usage=False)


def begun_by(reply: Reply, words: Words, writer: ChunkWriter) -> Begun | None:
    """How a chat begins whose first token that reply is, `writer` going on behind it; None where nobody can go on.

    Raises: Malformed.
    """
    try:
        answer = _decode(reply.body or b"")
    except msgspec.DecodeError:
        return None
    if len(answer.choices) != 1:
        return None
    choice = answer.choices[0]
    prompt = answer.prompt_token_ids or choice.prompt_token_ids
    if not prompt or not all(map(is_token, prompt)):
        return None
    tokens, ends = checked(choice, most=1)
    head = {"id": answer.id, "object": "chat.completion.chunk", "created": answer.created, "model": answer.model}
    # What the target hides, as reasoning, or writes by another tokenizer, is not what these tokens are.
    if words.writer((), len(tokens) + 1, is_chat=True).begin(head, tokens, choice.message.content or "") is None:
        return None
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    writer.begin(head, (), "")
    shown = encode_event(msgspec.json.encode({**head, "choices": [role]})) + writer.take(tokens, ends=ends)
    return Begun(prompt, tokens, shown)


def _with(call: Call, fields: dict[str, Any], without: str = "") -> Call:
    assert call.body is not None, "it fits"
    body = {name: value for name, value in call.body.items() if name != without} | fields
    return structs.replace(call, raw=msgspec.json.encode(body), body=body)

"""The requests and answers of the simulated backend: four characters are one token, and all answered tokens are equal.

When tokens come is decided by `simulated_replica.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from backends.charges.usage import Usage
from backends.errors import InvalidRequest, UnknownPath
from backends.operations import Operation
from backends.protocol import Call
from backends.sse import DONE_EVENT, encode_event

CHARACTERS_PER_TOKEN = 4
OPERATIONS = frozenset({Operation.CHAT, Operation.COMPLETION})

# Parts of the JSON output, filled in with `%`: the values are digits and words that need no escapes.
_TOKEN = b" tok"
_TEXT = b'"text":"%b"'
_DELTA = b'"delta":{"content":"%b"}'
_FIRST_DELTA = b'"delta":{"role":"assistant","content":"%b"}'
_MESSAGE = b'"message":{"role":"assistant","content":"%b","refusal":null}'
_FIELD = re.compile(r"(?:field `|\$\.)(\w+)")

_Limit = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | None


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


class _RequestFields(msgspec.Struct):
    """The fields that both operations have."""

    max_tokens: _Limit = None
    output_tokens: _Limit = None
    cached_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    n: int | None = None


class _ChatRequest(_RequestFields, kw_only=True):
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: _Limit = None


class _CompletionRequest(_RequestFields):
    prompt: str | list[str | int] = ""


class CallSizes(msgspec.Struct, frozen=True):
    """The sizes of a call in tokens, and the ids of its prompt's full blocks, each a hash of all the text up to it."""

    blocks: Sequence[int]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    is_cut: bool
    """Whether the client's limit ends the answer."""


def read_sizes(call: Call, *, output_tokens: int, block_tokens: int) -> CallSizes:
    """Read the sizes of a call. Its answer has `output_tokens` unless the call sets or limits the length.

    Raises: UnknownPath for an operation that is not simulated, InvalidRequest for a body that cannot be used.
    """
    fields: _ChatRequest | _CompletionRequest
    try:
        if call.operation is Operation.CHAT:
            fields = msgspec.convert(call.body, _ChatRequest)
            text = _chat_text(fields.messages)
            limit = fields.max_completion_tokens or fields.max_tokens
        elif call.operation is Operation.COMPLETION:
            fields = msgspec.convert(call.body, _CompletionRequest)
            text = _prompt_text(fields.prompt)
            limit = fields.max_tokens
        else:
            raise UnknownPath(f"the simulated backend does not answer {call.method} {call.path}")
    except msgspec.ValidationError as error:
        field = _FIELD.search(str(error))
        raise InvalidRequest(str(error), param=field[1] if field else None) from error
    if fields.n not in (None, 1):
        raise InvalidRequest("the simulated backend gives one answer a call, so n is 1", param="n")
    wanted = fields.output_tokens or output_tokens
    is_cut = limit is not None and limit < wanted
    return CallSizes(
        blocks=_block_ids(text, block_tokens),
        prompt_tokens=max(1, -(-len(text) // CHARACTERS_PER_TOKEN)),
        output_tokens=limit if limit is not None and is_cut else wanted,
        cached_tokens=fields.cached_tokens,
        is_cut=is_cut,
    )


class SimulatedAnswer:
    """Writes the answer to a call: the events of a stream, or one body."""

    __slots__ = ("_head", "_is_chat", "_sizes")

    def __init__(self, call: Call, sizes: CallSizes, *, number: int, created: int) -> None:
        """`number` makes the id, `created` is in Unix seconds."""
        self._is_chat = is_chat = call.operation is Operation.CHAT
        kind = ("chat.completion.chunk" if call.stream else "chat.completion") if is_chat else "text_completion"
        name = f"{'chatcmpl' if is_chat else 'cmpl'}-simulated-{number}"
        head = {"id": name, "object": kind, "created": created, "model": call.model}
        self._head = msgspec.json.encode(head).removesuffix(b"}")
        self._sizes = sizes

    def usage(self, cached_tokens: int) -> Usage:
        """The tokens of the whole answer."""
        return Usage(self._sizes.prompt_tokens, self._sizes.output_tokens, cached_tokens)

    def body(self, cached_tokens: int) -> bytes:
        """The answer as one JSON object."""
        text = _TOKEN * self._sizes.output_tokens
        content = (_MESSAGE if self._is_chat else _TEXT) % text
        return b'%b,"choices":[%b],"usage":%b}' % (self._head, self._last_choice(content), self._usage(cached_tokens))

    def event(self, num_tokens: int, *, is_first: bool) -> bytes:
        """The next tokens of a stream."""
        text = _TOKEN * num_tokens
        if not self._is_chat:
            return self._chunk(_choice(_TEXT % text))
        return self._chunk(_choice((_FIRST_DELTA if is_first else _DELTA) % text))

    def last_events(self, cached_tokens: int) -> bytes:
        """The end of a stream: the finish reason, the usage, and [DONE]."""
        content = b'"delta":{}' if self._is_chat else _TEXT % b""
        usage = encode_event(b'%b,"choices":[],"usage":%b}' % (self._head, self._usage(cached_tokens)))
        return self._chunk(self._last_choice(content)) + usage + DONE_EVENT

    def _chunk(self, choice: bytes) -> bytes:
        return encode_event(b'%b,"choices":[%b]}' % (self._head, choice))

    def _last_choice(self, content: bytes) -> bytes:
        return _choice(content, b'"length"' if self._sizes.is_cut else b'"stop"')

    def _usage(self, cached_tokens: int) -> bytes:
        sizes = self._sizes
        return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":%b}' % (
            sizes.prompt_tokens,
            sizes.output_tokens,
            sizes.prompt_tokens + sizes.output_tokens,
            b'{"cached_tokens":%d}' % cached_tokens,
        )


def _choice(content: bytes, finish_reason: bytes = b"null") -> bytes:
    return b'{"index":0,%b,"logprobs":null,"finish_reason":%b}' % (content, finish_reason)


def _block_ids(text: str, block_tokens: int) -> list[int]:
    size = block_tokens * CHARACTERS_PER_TOKEN
    ids = []
    chained = 0
    for end in range(size, len(text) + 1, size):
        chained = hash((chained, text[end - size : end]))
        ids.append(chained)
    return ids


def _chat_text(messages: list[_Message]) -> str:
    if len(messages) == 1 and isinstance(messages[0].content, str):
        return messages[0].content
    return "\n".join(
        " ".join(part.text for part in message.content) if isinstance(message.content, list) else message.content or ""
        for message in messages
    )


def _prompt_text(prompt: str | list[str | int]) -> str:
    if isinstance(prompt, str):
        return prompt
    # A token id is written as four characters, the length of one token.
    return "".join(part if isinstance(part, str) else f"{part & 0xFFFF:04x}" for part in prompt)

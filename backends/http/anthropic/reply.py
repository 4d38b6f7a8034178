"""Turns what the Messages API answers into OpenAI's words: whole answers, usage, errors, rate-limit fields.

Its streams are in `events.py`, which shares the types here.
"""

from __future__ import annotations

import math
from datetime import datetime
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from backends.charges.usage import FAST, FAST_AT_HOME, HOME_ONLY, Usage
from backends.errors import UpstreamGarbage, UpstreamRejectedKey, error_body
from backends.http.anthropic.thinking import FIELD, Thought, told_thoughts
from backends.protocol import Headers, Reply
from backends.untrusted import Count, FieldReader, ServiceTier, believed
from backends.waits import MAX_WAIT_S, with_believed_waits

OVERLOADED = 529
"""The Messages API's own status for "try again later"."""

_MAX_ITERATIONS = 1000
"""More than any answer has."""
_COMPACTION = "compaction"
"""An iteration in which a conversation was summed up. Its tokens are paid for as others are, but are in no total beside
it. Nor are those of an adviser, which is another model, and like other tools not known to a price."""

_RETRY_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, OVERLOADED)

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}

_RATE_LIMITS = {
    f"anthropic-ratelimit-{subject}-{figure}".encode(): f"x-ratelimit-{figure}-{subject}".encode()
    for subject in ("requests", "tokens")
    for figure in ("limit", "remaining", "reset")
}

# Words of the API's own messages; it has no code for this, and agents act on OpenAI's.
_TOO_LONG = ("prompt is too long", "exceed context limit")


class Block(msgspec.Struct):
    """A content block of an answer; which fields mean something depends on `type`."""

    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _OutputDetails(msgspec.Struct):
    thinking_tokens: Count = 0


class _CacheCreation(msgspec.Struct):
    ephemeral_5m_input_tokens: Count = 0
    ephemeral_1h_input_tokens: Count = 0


class _Iteration(msgspec.Struct):
    """One of the times that a model has worked for an answer."""

    type: str
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_creation: _CacheCreation | None = None


class TokenCounts(msgspec.Struct):
    """The usage object of the Messages API; of a stream's later ones only what is not null counts."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_creation: _CacheCreation | None = None
    service_tier: ServiceTier | None = None
    speed: ServiceTier | None = None
    inference_geo: ServiceTier | None = None
    output_tokens_details: _OutputDetails | None = None
    iterations: list[_Iteration] | None = None

    def update(self, later: TokenCounts) -> None:
        """Take over the figures that `later` has; they are totals, not increments."""
        for name in self.__struct_fields__:
            value = getattr(later, name)
            if value is not None:
                setattr(self, name, value)

    def counted(self) -> Usage:
        """The same in the gateway's own words; tokens read from and written to the cache are prompt tokens too."""
        usage = _usage_of(self)
        for each in (self.iterations or ())[:_MAX_ITERATIONS]:
            if each.type == _COMPACTION:
                usage = (usage + _usage_of(each)).mapped(believed)
        return msgspec.structs.replace(
            usage,
            reasoning_tokens=self.output_tokens_details.thinking_tokens if self.output_tokens_details else 0,
            service_tier=self._tier(),
        ).bounded()

    def _tier(self) -> str:
        tier = FAST if self.speed == FAST else self.service_tier or ""
        if self.inference_geo != HOME_ONLY:
            return tier
        return FAST_AT_HOME if tier == FAST else HOME_ONLY

    def told(self) -> Usage | None:
        """The same; None where nothing of it can be believed, or it counts nothing."""
        usage = self.counted()
        return usage if usage.prompt_tokens or usage.completion_tokens else None

    def as_openai(self) -> dict[str, Any]:
        """The same as OpenAI's usage object."""
        usage = self.counted()
        shown: dict[str, Any] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": usage.written_5m_tokens + usage.written_1h_tokens,
            },
        }
        if self.output_tokens_details is not None:
            shown["completion_tokens_details"] = {"reasoning_tokens": self.output_tokens_details.thinking_tokens}
        return shown


def _usage_of(counts: TokenCounts | _Iteration) -> Usage:
    kinds = counts.cache_creation or _CacheCreation()
    in_kinds = kinds.ephemeral_5m_input_tokens + kinds.ephemeral_1h_input_tokens
    written = counts.cache_creation_input_tokens or in_kinds
    written_1h = min(written, kinds.ephemeral_1h_input_tokens)
    cached = counts.cache_read_input_tokens or 0
    return Usage(
        prompt_tokens=(counts.input_tokens or 0) + cached + written,
        completion_tokens=counts.output_tokens or 0,
        cached_tokens=cached,
        written_5m_tokens=written - written_1h,
        written_1h_tokens=written_1h,
    )


class AnthropicMessage(msgspec.Struct):
    """An answer of the Messages API."""

    type: Literal["message"]
    id: str
    model: str
    content: list[Block]
    stop_reason: str | None
    usage: msgspec.Raw = msgspec.Raw()


class ErrorDetail(msgspec.Struct):
    """The inner object of a Messages error."""

    type: str
    message: str


class _ErrorAnswer(msgspec.Struct):
    error: ErrorDetail


_read_counts = FieldReader(TokenCounts)
_decode_message = msgspec.json.Decoder(AnthropicMessage).decode
_decode_error = msgspec.json.Decoder(_ErrorAnswer).decode


def read_message(backend: str, body: bytes) -> AnthropicMessage:
    """A whole answer.

    Raises: UpstreamGarbage where it is not one.
    """
    try:
        message = _decode_message(body.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UpstreamGarbage(f'the upstream "{backend}" answered with something that is not a message') from None
    if message.stop_reason is None:
        raise UpstreamGarbage(f'the upstream "{backend}" answered with a message that is not finished')
    return message


def read_counts(usage: msgspec.Raw) -> TokenCounts:
    """What a usage object says, as far as it is believed; nothing of what is none."""
    try:
        return _read_counts(usage)
    except msgspec.DecodeError:
        return TokenCounts()


def encode_completion(message: AnthropicMessage, created: int) -> bytes:
    """The same answer as a chat completion. `created`: seconds since the Unix epoch."""
    assert message.stop_reason is not None, "the message is whole"
    text = "".join([block.text for block in message.content if block.type == "text"])
    reasoning = "".join([block.thinking for block in message.content if block.type == "thinking"])
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": bytes(block.input).decode()},
        }
        for block in message.content
        if block.type == "tool_use"
    ]
    answer: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
    if reasoning:
        answer["reasoning_content"] = reasoning
    if thoughts := told_thoughts(filter(None, map(thought_of, message.content))):
        answer[FIELD] = thoughts
    if calls:
        answer["tool_calls"] = calls
    choice = {"index": 0, "message": answer, "logprobs": None, "finish_reason": finish_reason(message.stop_reason)}
    return msgspec.json.encode(
        {
            "id": message.id,
            "object": "chat.completion",
            "created": created,
            "model": message.model,
            "choices": [choice],
            "usage": read_counts(message.usage).as_openai(),
        }
    )


def thought_of(block: Block) -> Thought | None:
    """What a block begins to think; None where it does not."""
    if block.type not in ("thinking", "redacted_thinking"):
        return None
    thought = Thought(block.type, data=block.data)
    thought.add(block.thinking, block.signature)
    return thought


def finish_reason(stop_reason: str) -> str:
    """OpenAI's word for a stop reason; one not known to mean a finished answer (`pause_turn`) counts as cut short."""
    return _FINISH_REASONS.get(stop_reason, "length")


def error_reply(backend: str, status: int, headers: Headers, body: bytes) -> Reply:
    """The reply for an answer with `status` >= 300; `headers` are translated, and nothing is in `body` to be hidden.

    Raises: UpstreamRejectedKey for 401 and 403 (the client's own key was fine), UpstreamGarbage for an answer
    without a Messages error, unless its status says to try again later.
    """
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise UpstreamRejectedKey(
            f'the upstream "{backend}" refused the gateway\'s credentials ({status}); check api_key of that backend'
        )
    try:
        if status < HTTPStatus.BAD_REQUEST:
            raise UpstreamGarbage(f'the upstream "{backend}" answered with a redirect ({status}); check its base_url')
        detail = _decode_error(body.decode()).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if status not in _RETRY_LATER:
            raise UpstreamGarbage(
                f'the upstream "{backend}" answered with status {status} and no Messages error; check its base_url'
            ) from None
        detail = ErrorDetail(type="", message=f'the upstream "{backend}" answered with status {status}')
    return translate_error(status, headers, detail)


def translate_error(status: int, headers: Headers, detail: ErrorDetail) -> Reply:
    """A Messages error as the reply that an OpenAI client understands."""
    type_, code = "invalid_request_error", None
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        type_, code = "rate_limit_error", "rate_limit_exceeded"
    elif status == OVERLOADED:
        # No client library knows 529; 503 is what they retry.
        status, type_, code = HTTPStatus.SERVICE_UNAVAILABLE, "server_error", "overloaded"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        type_ = "server_error"
    elif status == HTTPStatus.NOT_FOUND:
        code = "model_not_found"
    elif status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        code = "request_too_large"
    elif any(words in detail.message for words in _TOO_LONG):
        code = "context_length_exceeded"
    return Reply(int(status), headers, body=error_body(detail.message, type=type_, code=code))


def translate_headers(headers: Headers, content_type: bytes, now_s: float) -> Headers:
    """The upstream's fields that mean something to an OpenAI client. `now_s`: seconds since the Unix epoch."""
    kept: Headers = [(b"content-type", content_type)]
    for name, value in with_believed_waits(headers, now_s):
        if name == b"retry-after":
            kept.append((name, value))
        elif name == b"request-id":
            kept.append((b"x-upstream-request-id", value))
        elif name in _RATE_LIMITS:
            if name.endswith(b"-reset"):
                value = _until(value, now_s)
            if value:
                kept.append((_RATE_LIMITS[name], value))
    return kept


def _until(timestamp: bytes, now_s: float) -> bytes:
    """An RFC 3339 time as the duration that OpenAI's field holds, rounded up; empty where it is not one."""
    try:
        moment = datetime.fromisoformat(timestamp.decode("ascii")).timestamp()
    except (ValueError, OverflowError):
        return b""
    return b"%ds" % min(max(0, math.ceil(moment - now_s)), MAX_WAIT_S)

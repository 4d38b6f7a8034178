"""Why an attempt failed, in one closed vocabulary: what may be retried, what goes to another route, who is to blame.

Called by the pool and by fallbacks for everything that is not an answer below 400.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, get_args

import msgspec

from backends.errors import (
    FirstTokenTimeout,
    NoBackendAvailable,
    Overloaded,
    PoolTimeout,
    SlipstreamError,
    UpstreamCut,
    UpstreamError,
    UpstreamErrorEvent,
    UpstreamExhausted,
    UpstreamRejectedKey,
    UpstreamTimeout,
)
from backends.json_errors import NOT_JSON
from backends.protocol import Reply
from policies.pool.attempts.settings import FallbackOn, RetryOn

Outcome = Reply | UpstreamError
"""How an attempt has ended: a reply, whatever its status, or none."""


class Health(Enum):
    """What an outcome says about the backend itself."""

    WORKING = "working"
    """It answered; that the answer is an error is the request's fault."""
    UNKNOWN = "unknown"
    """Nothing: it is full, or the cause lies on our side."""
    BROKEN = "broken"
    """It failed: no connection, 5xx, too slow, or a cut."""


class Failure(NamedTuple):
    """One failed attempt. None as `reason` or `kind`: nothing in the policy can ask for a retry or a fallback."""

    reason: RetryOn | None
    kind: FallbackOn | None
    health: Health


UNPAID: frozenset[RetryOn | None] = frozenset({"connect", "429", "503", "529", "rejected_key", "unknown_model"})
"""Reasons of failures before any model has worked on the call."""


def failure_of(outcome: Reply | SlipstreamError) -> Failure:
    """Classify an error, or a reply whose status is 400 or above."""
    if isinstance(outcome, Reply):
        return _failure_of_reply(outcome)
    return _failure_of_error(outcome)


def has_begun(outcome: Outcome | SlipstreamError) -> bool:
    """Whether somebody may have begun to work on a call that failed so."""
    reason, kind, _ = failure_of(outcome)
    # What is wrong with a call an answer says at once, and an event in the midst of the work.
    is_refusal = isinstance(outcome, Reply) and 400 <= outcome.status < 500 and reason is None
    return not (reason in UNPAID or kind == "overload" or is_refusal)


_STATUSES: dict[int, RetryOn] = {int(reason): reason for reason in get_args(RetryOn) if reason.isdigit()}

_NO_MODEL = "model_not_found"

_CONTENT_CODES: dict[str, FallbackOn] = {
    "context_length_exceeded": "context_window",
    "context_window_exceeded": "context_window",
    "exceed_context_size_error": "context_window",
    "content_filter": "content_policy",
    "content_policy_violation": "content_policy",
    "moderation_blocked": "content_policy",
    "data_inspection_failed": "content_policy",
}

# Where servers send no code of their own. Lower case; the server that says so behind each.
_CONTENT_MESSAGES: tuple[tuple[str, FallbackOn], ...] = (
    ("maximum context length", "context_window"),  # OpenAI, vLLM, SGLang
    ("longer than the maximum model length", "context_window"),  # vLLM
    ("model's context length is only", "context_window"),  # vLLM, of tokens and of characters
    ("cannot be greater than max_model_len", "context_window"),  # vLLM
    ("max_tokens must be at least 1, got -", "context_window"),  # vLLM: what the prompt leaves is less than nothing
    ("longer than the model's context length", "context_window"),  # SGLang
    ("exceeds the maximum allowed length (", "context_window"),  # SGLang
    ("exceeds the maximum allowed input length", "context_window"),  # SGLang
    ("exceeds the available context size", "context_window"),  # llama.cpp
    ("context size has been exceeded", "context_window"),  # llama.cpp, in the middle of an answer
    ("is too large to process. increase the physical batch size", "context_window"),  # llama.cpp, embeddings
    ("should not exceed max_seq_len", "context_window"),  # TensorRT-LLM
    ("exceeds maximum input length", "context_window"),  # TensorRT-LLM
    ("`inputs` tokens + `max_new_tokens` must be <=", "context_window"),  # TGI
    ("`inputs` must have less than", "context_window"),  # TGI
    ("prompt is too long", "context_window"),  # Anthropic
    ("exceed context limit", "context_window"),  # Anthropic
    ("exceeds the context window", "context_window"),  # OpenAI
    ("content filtering policy", "content_policy"),  # Anthropic
    ("content management policy", "content_policy"),  # Azure OpenAI
    ("violating our usage policy", "content_policy"),  # OpenAI
)


class _Error(msgspec.Struct):
    message: Any = None
    type: Any = None
    code: Any = None


class _ErrorBody(msgspec.Struct):
    error: _Error


_decode_error = msgspec.json.Decoder(_ErrorBody).decode


def _failure_of_reply(reply: Reply) -> Failure:
    status = reply.status
    if status == 429:
        return Failure("429", "rate_limit", Health.UNKNOWN)
    content = _content_kind_of(reply.body)
    if content is not None or status == 413:
        # The same request would fail in the same way, here and on every replica.
        return Failure(None, content or "context_window", Health.WORKING)
    reason = _STATUSES.get(status)
    if status == 408:
        return Failure(reason, "timeout", Health.UNKNOWN)
    if status < 500:
        # In these the gateway's own account, or what it made of the model's name, is to blame; others may do better.
        reason = "rejected_key" if status == 402 else "unknown_model" if _lacks_model(reply) else reason
        return Failure(reason, "error" if reason is not None else None, Health.WORKING)
    return Failure(reason, "timeout" if status == 504 else "error", Health.BROKEN)


def _failure_of_error(error: SlipstreamError) -> Failure:
    if not isinstance(error, UpstreamError):
        return Failure(None, None, Health.UNKNOWN)
    if isinstance(error, UpstreamErrorEvent):
        content = _content_kind(error.message)
        if content is not None:
            return Failure(None, content, Health.WORKING)
    if isinstance(error, Overloaded):
        return Failure(None, "overload", Health.UNKNOWN)
    if isinstance(error, UpstreamExhausted):
        return Failure("429", "rate_limit", Health.UNKNOWN)
    reason: RetryOn | None
    if error.retryable:
        reason = "connect"
    elif isinstance(error, FirstTokenTimeout):
        reason = "first_token_timeout"
    elif isinstance(error, UpstreamCut):
        reason = "upstream_cut"
    elif isinstance(error, UpstreamRejectedKey):
        reason = "rejected_key"
    else:
        reason = _STATUSES.get(error.status)
    is_ours = isinstance(error, (PoolTimeout, NoBackendAvailable))
    return Failure(
        reason,
        "timeout" if isinstance(error, UpstreamTimeout) else "error",
        Health.UNKNOWN if is_ours else Health.BROKEN,
    )


def _error_of(body: bytes | None) -> _Error | None:
    """The error of a body in OpenAI's shape."""
    if body is None:
        return None
    try:
        return _decode_error(body).error
    except NOT_JSON:
        return None


def _lacks_model(reply: Reply) -> bool:
    """Whether it says that the upstream has no such model."""
    if reply.status not in (403, 404):
        return False
    error = _error_of(reply.body)
    if error is None:
        return False
    # Servers without this code name the model in their words.
    return error.code == _NO_MODEL or (
        reply.status == 404 and isinstance(error.message, str) and "model" in error.message.lower()
    )


def _content_kind_of(body: bytes | None) -> FallbackOn | None:
    """What an error body in OpenAI's shape says about the request's content, if that is what it is about."""
    error = _error_of(body)
    if error is None:
        return None
    for code in (error.code, error.type):
        kind = _CONTENT_CODES.get(code) if isinstance(code, str) else None
        if kind is not None:
            return kind
    return _content_kind(error.message) if isinstance(error.message, str) else None


def _content_kind(message: str) -> FallbackOn | None:
    lowered = message.lower()
    for words, kind in _CONTENT_MESSAGES:
        if words in lowered:
            return kind
    return None

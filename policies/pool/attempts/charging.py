"""What an attempt used: as the upstream told, or as far as could be seen of it where it did not.

Upstreams tell at the end of an answer. One that was left before its end has worked all the same: then its prompt is
estimated from the bytes of the request, and the answer from those that came.
"""

from __future__ import annotations

from functools import partial

import msgspec

from backends.errors import UpstreamError
from backends.protocol import Call, Charge, Reply, Usage
from backends.stream import Stream, StreamEnd
from policies.pool.attempts.classify import failure_of
from policies.pool.attempts.settings import RetryOn

_BYTES_PER_TOKEN = 4
_EVENT_END = b"\n\n"
_FREE: frozenset[RetryOn | None] = frozenset({"connect", "429", "503", "529", "rejected_key", "unknown_model"})
"""Failures before any model has worked on the call."""


def settle_reply(charge: Charge, call: Call, reply: Reply) -> None:
    """The head of a reply is there: a whole answer is over, a stream will be."""
    if reply.status >= 400:
        charge.settle(None)
    elif reply.stream is not None:
        if reply.stream.end is None:
            reply.stream.on_end.append(partial(_settle_stream, charge, call, reply.stream))
        else:
            _settle_stream(charge, call, reply.stream, reply.stream.end)
    elif call.facts.usage is not None:
        charge.settle(call.facts.usage)
    else:
        charge.settle(_estimate(call, len(reply.body or b"") // _BYTES_PER_TOKEN), is_estimated=True)


def settle_failure(charge: Charge, call: Call, error: BaseException, *, was_sent: bool) -> None:
    """There is no reply: the upstream failed, or nobody waits for it any longer."""
    is_free = isinstance(error, UpstreamError) and failure_of(error).reason in _FREE
    if call.facts.usage is not None:
        charge.settle(call.facts.usage, is_estimated=call.facts.is_usage_partial)
    elif is_free or not was_sent:
        charge.settle(None)
    else:
        charge.settle(_estimate(call, 0), is_estimated=True)


def _settle_stream(charge: Charge, call: Call, stream: Stream, _how: StreamEnd) -> None:
    """Taps have read what the upstream told, if it did before the end."""
    told = call.facts.usage
    if told is not None and not call.facts.is_usage_partial:
        charge.settle(told)
        return
    seen = seen_tokens(stream.beginning, stream.num_bytes) if call.operation.traits.writes_text else 0
    if told is None:
        charge.settle(_estimate(call, seen), is_estimated=True)
    else:
        most = max(told.completion_tokens, seen)
        charge.settle(msgspec.structs.replace(told, completion_tokens=most), is_estimated=True)


def seen_tokens(beginning: bytes, num_bytes: int) -> int:
    """About how many tokens so many bytes of events hold, which began so.

    The first event carries no text, as most servers send them, and those after it a token each.
    """
    first_bytes = beginning.find(_EVENT_END) + len(_EVENT_END)
    if first_bytes < len(_EVENT_END):
        return 0
    return round((num_bytes - first_bytes) / (first_bytes + _BYTES_PER_TOKEN))


def _estimate(call: Call, answer_tokens: int) -> Usage | None:
    """From the bytes of the request; None for what is passed through unread: it may be anything."""
    traits = call.operation.traits
    if not traits.prompt:
        return None
    return Usage(len(call.raw) // _BYTES_PER_TOKEN, answer_tokens if traits.writes_text else 0)

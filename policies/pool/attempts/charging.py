"""What an attempt used: as the upstream told, or as far as could be seen of it where it did not.

Upstreams tell at the end of an answer. One that was left before its end has worked all the same: then its prompt is
estimated from the bytes of the request, and the answer from what came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from backends.charges.charge import Charge, Pricing
from backends.charges.usage import MAX_TIER_CHARS, Usage, tier_asked
from backends.errors import UpstreamError
from backends.operations import Metering, Operation
from backends.protocol import Call, Reply
from backends.stream import Stream, StreamEnd
from policies.limits.worst import USUAL_MOST_TOKENS, most_output
from policies.pool.attempts.classify import UNPAID, failure_of
from policies.pool.attempts.written import written_tokens

_BYTES_PER_TOKEN = 4
_TOKENS_PER_S = 50
"""What models at providers write in a second, as a rule."""
_EVENT_END = b"\n\n"


def settle_reply(charge: Charge, call: Call, reply: Reply) -> None:
    """The head of a reply is there: a whole answer is over, a stream will be."""
    if reply.status >= 400:
        charge.settle(None)
    elif reply.stream is not None:
        if reply.stream.end is None:
            reply.stream.on_end.append(partial(_settle_stream, charge, call, reply.stream))
        else:
            _settle_stream(charge, call, reply.stream, reply.stream.end)
    else:
        is_told = call.facts.usage is not None and not call.facts.is_usage_partial
        _settle(charge, call, 0 if is_told else _seen_of(reply))


def settle_failure(charge: Charge, call: Call, error: BaseException, *, was_sent: bool, after_s: float = 0.0) -> None:
    """There is no reply: the upstream failed, or nobody waits for it any longer, so many seconds after it was sent."""
    is_free = isinstance(error, UpstreamError) and failure_of(error).reason in UNPAID
    if call.facts.usage is None and (is_free or not was_sent):
        charge.settle(None)
    else:
        is_left = not isinstance(error, UpstreamError)
        seen = _written_unseen(call, after_s) if is_left and not call.stream else 0
        _settle(charge, call, seen, is_flat_estimated=True)


def _seen_of(reply: Reply) -> int:
    """About how many tokens a whole answer has; what says that it is compressed is not read."""
    body = reply.body or b""
    is_coded = reply.header(b"content-encoding") not in (None, b"identity")
    return len(body) // _BYTES_PER_TOKEN if is_coded else written_tokens(body)


def _written_unseen(call: Call, seconds: float) -> int:
    """About how many tokens a whole answer had in that time, of which nobody sees any before its end.

    Else whoever always leaves just before the end would have no answer to pay for.
    """
    most = most_output(call.body, call.operation)
    longest = USUAL_MOST_TOKENS if most.tokens is None else most.tokens
    return most.choices * most.prompts * min(int(seconds * _TOKENS_PER_S), longest)


def _settle_stream(charge: Charge, call: Call, stream: Stream, _how: StreamEnd) -> None:
    if call.operation.traits.is_understood or call.stream:
        _settle(charge, call, seen_tokens(stream.beginning, stream.num_bytes))
    else:
        _settle(charge, call, stream.num_bytes // _BYTES_PER_TOKEN)


def _settle(charge: Charge, call: Call, seen: int, *, is_flat_estimated: bool = False) -> None:
    """What its upstream told of the answer counts; where it did not, or not all, about `seen` tokens came of it."""
    facts, terms = call.facts, call.terms
    told = facts.usage
    if charge.price_of is not None and facts.upstream_model:
        _price_as_served(charge, facts.upstream_model, charge.price_of)
    writes_text = call.operation.traits.writes_text if terms is None else terms.writes_text
    if terms is not None and terms.metering is Metering.FLAT:
        charge.settle_at(terms.flat_cost, told or Usage(), is_estimated=is_flat_estimated)
    elif told is not None and writes_text and (facts.is_usage_partial or not told.prompt_tokens):
        prompt, completion = told.prompt_tokens, told.completion_tokens
        # Of what passes the pieces are counted where they pass.
        if facts.is_usage_partial and (terms is None or not completion):
            completion = max(completion, seen)
        usage = msgspec.structs.replace(
            told, prompt_tokens=prompt or len(call.raw) // _BYTES_PER_TOKEN, completion_tokens=completion
        )
        charge.settle(usage, is_estimated=True)
    elif told is not None:
        charge.settle(told)
    elif terms is not None and (terms.metering is Metering.FREE or terms.is_free_untold):
        charge.settle(None)
    elif _goes_on(call):
        charge.settle(None, is_estimated=True)
    elif call.operation.traits.prompt or (terms is not None and terms.metering is Metering.METERED):
        # Who leaves before its answer tells the tier has asked for it all the same.
        tier = tier_asked(call.body)
        used = Usage(
            len(call.raw) // _BYTES_PER_TOKEN,
            seen if writes_text else 0,
            service_tier=tier if len(tier) <= MAX_TIER_CHARS else "",
        )
        charge.settle(used, is_estimated=True)
    else:
        # It may be anything.
        charge.settle(None, is_estimated=True)


def _price_as_served(charge: Charge, served: str, price_of: Callable[[str], Pricing | None]) -> None:
    price = price_of(served)
    # Upstreams spell a model longer than it was asked for, and a list need not know each spelling.
    if price is not None or not served.startswith(charge.model):
        charge.price = price


def _goes_on(call: Call) -> bool:
    """Whether the upstream has answered before it has begun to work."""
    return call.operation is Operation.RESPONSES and call.body is not None and bool(call.body.get("background"))


def seen_tokens(beginning: bytes, num_bytes: int) -> int:
    """About how many tokens so many bytes of events hold, which began so.

    The first event carries no text, as most servers send them, and those after it a token each.
    """
    first_bytes = beginning.find(_EVENT_END) + len(_EVENT_END)
    if first_bytes < len(_EVENT_END):
        return 0
    return round((num_bytes - first_bytes) / (first_bytes + _BYTES_PER_TOKEN))

"""A draft for an answer that an upstream Slipstream is writing, on the connections that its calls use."""

from __future__ import annotations

import msgspec

from backends.clock import Clock
from backends.drafts.push import Draft
from backends.errors import UnknownObject, UpstreamGarbage
from backends.http.wire import TimeLimits, Wire
from backends.protocol import Headers

_LIMIT_S = 5.0
"""A draft that is later than that helps nobody."""
_MAX_ANSWER_BYTES = 64 * 1024


async def push_draft(wire: Wire, target: bytes, headers: Headers, draft: Draft, clock: Clock) -> None:
    """Post it. Raises: UnknownObject where the upstream has no such answer (any more); UpstreamError."""
    limits = TimeLimits(connect_s=_LIMIT_S, first_byte_s=_LIMIT_S, idle_s=_LIMIT_S, deadline=clock.now() + 2 * _LIMIT_S)
    exchange = await wire.send("POST", target, headers, msgspec.json.encode([draft]), limits)
    try:
        if exchange.status == 404:
            raise UnknownObject("the upstream has no such answer, or not any more")
        if not 200 <= exchange.status < 300:
            raise UpstreamGarbage(f"the upstream answered a draft with status {exchange.status}")
        # Read to its end, or the connection could not be used again.
        await exchange.body(_MAX_ANSWER_BYTES)
    finally:
        await exchange.aclose()

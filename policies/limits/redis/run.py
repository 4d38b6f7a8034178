"""Which Redis is at the other end of a connection, and whether what is counted there stays there."""

from __future__ import annotations

import re

import msgspec

from policies.limits.redis.scripts import pack_command
from policies.limits.redis.wire import RedisWire

_RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)
_EVICTS = re.compile(rb"^maxmemory_policy:(?!noeviction)", re.MULTILINE)


class RedisRun(msgspec.Struct, frozen=True):
    """One run of one Redis, from its start to its end."""

    name: bytes
    """Its own name for it; the same for all that do not tell, for they may not."""
    evicts: bool
    """Whether it takes away what was counted when its memory is full."""


NAMELESS = RedisRun(b"nameless", evicts=False)


async def run_of(wire: RedisWire) -> RedisRun:
    """That at the other end. `NAMELESS` too where the connection ends."""
    reply = await wire.ask(pack_command(b"INFO"))
    found = _RUN_ID.search(reply) if isinstance(reply, bytes) else None
    if found is None or not isinstance(reply, bytes):
        return NAMELESS
    return RedisRun(found[1], evicts=_EVICTS.search(reply) is not None)

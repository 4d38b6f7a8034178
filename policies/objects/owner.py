"""Whose an object at an upstream is, and where several processes remember it together."""

from __future__ import annotations

from typing import Protocol

import msgspec

TTL_S = 30 * 86400.0
"""How long an owner is remembered: as long as OpenAI keeps a response."""


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """Who made an object, through which route, and the backend that keeps it."""

    tenant: str
    route: str
    backend: str


class SharedOwners(Protocol):
    """A store of owners that several processes share. While it is down its owners are unknown, and calls go on."""

    async def open(self) -> None:
        """Acquire what it needs."""

    async def aclose(self) -> None:
        """Release it. Safe to call twice."""

    async def find(self, id: str) -> Owner | None:
        """Whose it is; None where that is not known, or cannot be told now."""

    async def put(self, id: str, owner: Owner) -> Owner:
        """Store the owner unless the object has one already. Returns the owner that is stored afterwards."""


def pack_owner(owner: Owner) -> bytes:
    """As bytes for `unpack_owner`."""
    return msgspec.msgpack.encode(owner)


def unpack_owner(packed: bytes) -> Owner | None:
    """The owner; None where these bytes say none."""
    try:
        return msgspec.msgpack.decode(packed, type=Owner)
    except msgspec.MsgspecError:
        return None

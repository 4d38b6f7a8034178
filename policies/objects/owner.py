"""Whose an object at an upstream is, and where several processes remember it together."""

from __future__ import annotations

from typing import Protocol

import msgspec

TTL_S = 30 * 86400.0
"""As long as OpenAI keeps a response."""


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """Who made an object, through which route, and the backend that keeps it."""

    tenant: str
    route: str
    backend: str


class SharedOwners(Protocol):
    """Where several processes remember together. One that is down costs what it would have known, and nothing else."""

    async def open(self) -> None:
        """Acquire what it needs."""

    async def aclose(self) -> None:
        """Release it. Safe to call twice."""

    async def find(self, id: str) -> Owner | None:
        """Whose it is; None where that is not known, or cannot be told now."""

    async def put(self, id: str, owner: Owner) -> Owner:
        """Remember it, before others are asked for it, unless it is somebody's: whose it is now."""


def pack_owner(owner: Owner) -> bytes:
    """As bytes for `unpack_owner`."""
    return msgspec.msgpack.encode(owner)


def unpack_owner(packed: bytes) -> Owner | None:
    """The owner; None where these bytes say none."""
    try:
        return msgspec.msgpack.decode(packed, type=Owner)
    except msgspec.MsgspecError:
        return None

"""Whose a scope is, how much of the store its tenant may fill, how long its answers live: noted when one is stored."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

_MAX_SCOPES = 65_536
_DEFAULT_TTL_S = 24 * 3600.0


class Quota(msgspec.Struct, frozen=True):
    """A tenant, and the bytes that the entries of all its scopes may take together."""

    tenant: str
    max_bytes: int


class Quotas:
    """The quota of each scope. Scopes that nobody has noted lately share one that is as large as the store."""

    def __init__(self, store_bytes: int) -> None:
        self._store_bytes = store_bytes
        self._known: OrderedDict[bytes, tuple[Quota, float]] = OrderedDict()

    def note(self, scope: bytes, tenant: str, *, max_bytes: int | None, ttl_s: float) -> None:
        """This scope is that tenant's, which may fill so much (None: all of the store); its answers live `ttl_s`."""
        self._known[scope] = (Quota(tenant, min(max_bytes or self._store_bytes, self._store_bytes)), ttl_s)
        self._known.move_to_end(scope)
        if len(self._known) > _MAX_SCOPES:
            self._known.popitem(last=False)

    def __call__(self, scope: bytes) -> Quota:
        """The quota of a scope."""
        known = self._known.get(scope)
        return known[0] if known is not None else Quota("", self._store_bytes)

    def ttl_s(self, scope: bytes) -> float:
        """How long answers of a scope live, in seconds."""
        known = self._known.get(scope)
        return known[1] if known is not None else _DEFAULT_TTL_S

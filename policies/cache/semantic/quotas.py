"""Whose a scope is, and how much of the store its tenant may fill: noted when something is stored in it."""

from __future__ import annotations

from collections import OrderedDict

from policies.cache.semantic.answers_memory import Quota

_MAX_SCOPES = 65_536


class Quotas:
    """The quota of each scope. Scopes that nobody has noted lately share one that is as large as the store."""

    def __init__(self, store_bytes: int) -> None:
        self._store_bytes = store_bytes
        self._known: OrderedDict[bytes, Quota] = OrderedDict()

    def note(self, scope: bytes, tenant: str, max_bytes: int | None) -> None:
        """This scope is that tenant's, which may fill so much; None for all of the store."""
        self._known[scope] = Quota(tenant, min(max_bytes or self._store_bytes, self._store_bytes))
        self._known.move_to_end(scope)
        if len(self._known) > _MAX_SCOPES:
            self._known.popitem(last=False)

    def __call__(self, scope: bytes) -> Quota:
        """The quota of a scope."""
        return self._known.get(scope) or Quota("", self._store_bytes)

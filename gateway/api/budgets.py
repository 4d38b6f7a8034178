"""The admin API of budgets: who has spent how much of what, and raises for a while.

Under /admin/budgets, for keys of the policy file with `manages_keys: true`.
"""

from __future__ import annotations

import logging
from typing import Any

from backends.errors import InvalidRequest
from gateway.batches.file_store import parse_limit
from gateway.core import Core
from gateway.http.auth import Principal
from gateway.keys.key_store import KeyStore
from gateway.keys.raise_store import StoredRaise
from gateway.keys.raise_terms import checked_raise, raise_object
from gateway.keys.stored_keys import StoredKeys
from gateway.ledger.amounts import usd_text
from gateway.limits.budget_object import budget_object
from gateway.runtime import Runtime

_logger = logging.getLogger(__name__)
_LIMIT = 100
_MAX_LIMIT = 1000
_MAX_OFFSET = 10_000_000


class BudgetsApi:
    """What paths below /admin/budgets answer."""

    def __init__(self, core: Core, keys: StoredKeys) -> None:
        self._core = core
        self._keys = keys

    async def list_budgets(self, query: dict[str, str], runtime: Runtime) -> dict[str, Any]:
        """Those nearest to their end first."""
        limit, offset = parse_limit(query.get("limit"), _LIMIT, _MAX_LIMIT), _offset(query.get("offset", "0"))
        found = await self._core.reserving.view.states(runtime, query.get("budget"))
        return {
            "object": "list",
            "data": [budget_object(state) for state in found.states[offset : offset + limit]],
            "total": len(found.states),
            "has_more": len(found.states) > offset + limit,
            "is_whole": found.is_whole,
        }

    async def list_raises(self, query: dict[str, str]) -> dict[str, Any]:
        """The trail, the latest first."""
        limit, before = parse_limit(query.get("limit"), _LIMIT, _MAX_LIMIT), _offset(query.get("before", "0")) or None
        found = await self._keys.ask(lambda store: store.raises.page(limit + 1, before=before))
        now = self._core.clock.wall()
        return {
            "object": "list",
            "data": [raise_object(each, now) for each in found[:limit]],
            "has_more": len(found) > limit,
            "last_id": found[min(limit, len(found)) - 1].id if found else None,
        }

    async def add_raise(self, body: dict[str, Any], runtime: Runtime, principal: Principal) -> dict[str, Any]:
        """It counts at once here, and everywhere within seconds."""
        now = self._core.clock.wall()

        def add(store: KeyStore) -> StoredRaise:
            return store.raises.add(checked_raise(body, runtime.loaded.policy, store, now), principal.key)

        made = await self._keys.ask(add)
        await self._keys.refresh()
        _logger.info(
            'the budget "%s" of "%s" raised by %s USD by key %s',
            made.asked.budget,
            made.asked.who,
            usd_text(made.asked.amount),
            principal.key,
        )
        return raise_object(made, now)


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) <= _MAX_OFFSET):
        raise InvalidRequest(f"a place in a list is a whole number, 0 to {_MAX_OFFSET}")
    return int(text)

"""What a route's decisions have learned, one for each tenant; written down now and then, taken over at a reload."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from policies.cache.semantic.contracts import Decider, StateStore
from policies.cache.semantic.learning.labels import Learning

_logger = logging.getLogger(__name__)


class LearnedDecisions:
    """The learning of each scope, made when it is first asked for. `before`: dumps of decisions to go on from."""

    def __init__(
        self, fresh: Callable[[], Decider], states: StateStore | None, before: Mapping[bytes, bytes] | None = None
    ) -> None:
        self._fresh = fresh
        self._states = states
        self._before = dict(before or {})
        self._learning: dict[bytes, Learning] = {}

    async def learning(self, scope: bytes, name: str) -> Learning:
        """The learning of a scope; from where it was left, if that is known."""
        known = self._learning.get(scope)
        if known is not None:
            return known
        dumped = self._before.get(scope)
        if self._states is not None:
            saved = await self._states.load(scope)
            dumped = dumped or saved
        known = self._learning.get(scope)
        if known is None:
            decider = self._resumed(dumped, name)
            if self._states is not None:
                decider = self._states.share(scope, decider)
            known = self._learning[scope] = Learning(name, decider, self._fresh)
        return known

    def all(self) -> list[Learning]:
        """Every learning that has been asked for since the start."""
        return list(self._learning.values())

    def dumps(self) -> dict[bytes, bytes]:
        """Everything learned, for the book of a changed policy."""
        return self._before | {scope: learning.dump() for scope, learning in self._learning.items()}

    def save(self) -> None:
        """Hand what has changed since the last time to the store."""
        if self._states is None:
            return
        for scope, learning in self._learning.items():
            if learning.is_changed:
                learning.is_changed = False
                self._states.save(scope, learning.dump())

    def _resumed(self, dumped: bytes | None, name: str) -> Decider:
        decider = self._fresh()
        if dumped is not None:
            try:
                decider.load(dumped)
            except ValueError as error:
                _logger.warning('what the semantic cache had learned for tenant "%s" cannot be used: %s', name, error)
                return self._fresh()
        return decider

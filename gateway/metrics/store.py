"""Metrics of the exact cache's store.

`docs/metrics.md` describes each of them; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step

if TYPE_CHECKING:
    from gateway.runtime import Runtime
    from policies.cache.store import Store


class StoreMetrics(MetricGroup):
    """Every metric of that store."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_cache_")
        self.entries = self.gauge("entries", "Answers that the cache holds in memory.")
        self.bytes = self.gauge("bytes", "Bytes that the cache holds in memory.")
        self.errors = self.gauge("store_errors", "Failures of the cache's store since start; each was a miss.")
        self._store: Store | None = None

    def watch(self, store: Store) -> None:
        """Show what it holds."""
        self._store = store

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """One for the store, which outlives policies."""
        if self._store is not None:
            yield partial(self._copy, self._store)

    def _copy(self, store: Store) -> None:
        held = store.statistics()
        self.entries.set(held.entries)
        self.bytes.set(held.bytes)
        self.errors.set(held.errors)

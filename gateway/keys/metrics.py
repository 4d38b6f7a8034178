"""Metrics of the stored keys, copied from what a process knows of them, when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step

if TYPE_CHECKING:
    from gateway.keys.stored_keys import StoredKeys
    from gateway.runtime import Runtime


class KeysMetrics(MetricGroup):
    """Every metric of the key store."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_keys_")
        counter, gauge = self.counter, self.gauge
        self.known = gauge("known", "Stored keys that are not revoked.", workers="max")
        self.store_up = gauge("store_up", "Whether the key store answers.", workers="livemin")
        self.age = gauge("age_seconds", "How long ago what is known was the state of the store.", workers="livemax")
        self.changes = counter("changes", "Keys that were read, at the start or because they have changed.")
        self.unreadable = counter("unreadable", "Keys of the store that only a newer version can read.")
        self.refused = counter("refused", "Calls with a key that is not known, by why.", "reason")
        self._shown: Tally[str] = Tally()
        self._keys: StoredKeys | None = None

    def watch(self, keys: StoredKeys) -> None:
        """Show what is known."""
        self._keys = keys

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """One for all."""
        if self._keys is not None:
            yield partial(self._copy, self._keys)

    def _copy(self, keys: StoredKeys) -> None:
        now = keys.statistics()
        self.known.set(now.known)
        self.store_up.set(now.is_up)
        self.age.set(now.age_s)
        self.changes.inc(self._new("changes", now.changes))
        self.unreadable.inc(self._new("unreadable", now.unreadable))
        for reason, number in now.refused.items():
            self.refused.labels(reason).inc(self._new(reason, number))

    def _new(self, name: str, total: int) -> int:
        new = max(0, total - self._shown[name])
        self._shown[name] += new
        return new

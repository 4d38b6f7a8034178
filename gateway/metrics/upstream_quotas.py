"""Metrics of what upstreams' quotas leave, by backend and key.

`docs/metrics.md` describes each of them; a test compares the two. A key is named by its place in the policy file, from
1 on, and never by anything of its text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter

from backends.quotas.upstream_keys import Keyed, UpstreamKeys
from gateway.metrics.group import MetricGroup, Step, drop_series

if TYPE_CHECKING:
    from gateway.runtime import Runtime


class UpstreamQuotaMetrics(MetricGroup):
    """Every metric of upstreams' quotas. A kind that no answer has told of has no series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_upstream_", "backend", "key")
        self.left = self.gauge(
            "quota_left", "What upstreams told as left, less what went out since.", "kind", workers="livemin"
        )
        self.limit = self.gauge("quota_limit", "What upstreams told as their limit.", "kind", workers="livemax")
        self.out = self.gauge("key_out", "1 while a key of several is left out.", workers="livemax")
        self.calls = self.counter("key_calls", "Requests that were sent with a key of several.")
        self.refusals = self.counter("key_refusals", "Answers that refused such a key.", "reason")
        self.declared = self.gauge(
            "quota_declared_left", "What may be sent at once of what the policy declares.", "kind", workers="livesum"
        )
        self.held_back = Counter(
            "slipstream_upstream_held_back",
            "Calls that were answered without asking, for want of quota.",
            ["backend"],
            registry=registry,
        )
        self.add(self.held_back)
        self._shown: set[tuple[str, str, str]] = set()

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step a backend."""
        for name, leaf in runtime.leaves.items():
            if isinstance(leaf, Keyed):
                yield partial(self._copy, name, leaf.keys)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """What keys have counted last, and the series of backends that are made anew or gone."""
        for name, leaf in previous.leaves.items():
            if isinstance(leaf, Keyed) and runtime.leaves.get(name) is not leaf:
                yield partial(self._retire, name, leaf.keys)

    def _copy(self, backend: str, keys: UpstreamKeys) -> None:
        self._copy_counts(backend, keys)
        for key in keys.statistics():
            for kind, quota in key.left.items():
                self.left.labels(backend, key.name, kind).set(quota.left)
                self.limit.labels(backend, key.name, kind).set(quota.limit)
                self._shown.add((backend, key.name, kind))
            if len(keys.all) > 1:
                self.out.labels(backend, key.name).set(key.is_out)
        for name, left in keys.declared_left().items():
            for kind, quota in left.items():
                self.declared.labels(backend, name, kind).set(quota.left)

    def _copy_counts(self, backend: str, keys: UpstreamKeys) -> None:
        for key in keys.all:
            for what, number in key.take_counts().items():
                if what == "sent":
                    self.calls.labels(backend, key.name).inc(number)
                else:
                    self.refusals.labels(backend, key.name, what).inc(number)
        if number := keys.take_held_back():
            self.held_back.labels(backend).inc(number)

    def _retire(self, backend: str, keys: UpstreamKeys) -> None:
        self._copy_counts(backend, keys)
        for labels in [each for each in self._shown if each[0] == backend]:
            self._shown.remove(labels)
            drop_series(self.left, *labels)
            drop_series(self.limit, *labels)
        for name, left in keys.declared_left().items():
            for kind in left:
                self.declared.labels(backend, name, kind)
                drop_series(self.declared, backend, name, kind)
        if len(keys.all) > 1:
            for key in keys.all:
                self.out.labels(backend, key.name)
                drop_series(self.out, backend, key.name)

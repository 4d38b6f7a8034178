"""Metrics of what every backend counts.

`docs/metrics.md` describes each of them; a test compares the two. Labels are backends of the policy file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step, drop_series

if TYPE_CHECKING:
    from backends.protocol import Backend
    from gateway.runtime import Runtime


class BackendMetrics(MetricGroup):
    """Every metric of backends."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_backend_")
        self.in_flight = self.gauge("in_flight", "Calls a backend is working on.", "backend")
        self.connections = self.gauge(
            "connections", "Connections since start: opened, or reused for another call.", "backend", "kind"
        )

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step a backend."""
        for name, backend in runtime.leaves.items():
            yield partial(self._copy, name, backend)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """Backends whose names are gone."""
        for name in previous.leaves.keys() - runtime.leaves.keys():
            yield from self.drops("backend", (name,))
            yield partial(drop_series, self.connections, name, "opened")
            yield partial(drop_series, self.connections, name, "reused")

    def _copy(self, name: str, backend: Backend) -> None:
        counted = backend.statistics()
        self.in_flight.labels(name).set(counted.in_flight)
        self.connections.labels(name, "opened").set(counted.connections_opened)
        self.connections.labels(name, "reused").set(counted.connections_reused)

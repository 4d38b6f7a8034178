"""Copies what requests, backends, breakers and stores have counted into the metrics, when somebody looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core import Core

if TYPE_CHECKING:
    from policies.cache.store import Store


def refresh_gauges(core: Core, store: Store) -> None:
    """Bring counters and every gauge that mirrors a `statistics()` up to date."""
    core.observer.flush()
    metrics = core.metrics
    metrics.in_flight.set(core.in_flight)
    for name, backend in core.runtime.leaves.items():
        counted = backend.statistics()
        metrics.backend_in_flight.labels(name).set(counted.in_flight)
        metrics.backend_connections.labels(name, "opened").set(counted.connections_opened)
        metrics.backend_connections.labels(name, "reused").set(counted.connections_reused)
    for route, stack in core.runtime.stacks.items():
        for name, state in stack.breaker_states().items():
            metrics.breaker_open.labels(route, name).set(state != "closed")
    held = store.statistics()
    metrics.store_entries.set(held.entries)
    metrics.store_bytes.set(held.bytes)
    metrics.store_errors.set(held.errors)

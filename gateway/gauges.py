"""Copies what requests, backends, breakers and stores have counted into the metrics, when somebody looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import TYPE_CHECKING

from backends.protocol import ModelServer
from gateway.core import Core
from gateway.settings import shares_metrics

if TYPE_CHECKING:
    from prometheus_client import Gauge

    from gateway.batches.service import Batches
    from gateway.runtime import Runtime
    from policies.admission.gate import Gate
    from policies.cache.store import Store


def refresh_gauges(core: Core, store: Store, batches: Batches | None = None) -> None:
    """Bring counters and every gauge that mirrors a `statistics()` up to date."""
    core.observer.flush()
    metrics = core.metrics
    metrics.in_flight.set(core.in_flight)
    for name, backend in core.runtime.leaves.items():
        counted = backend.statistics()
        metrics.backend_in_flight.labels(name).set(counted.in_flight)
        metrics.backend_connections.labels(name, "opened").set(counted.connections_opened)
        metrics.backend_connections.labels(name, "reused").set(counted.connections_reused)
        if isinstance(backend, ModelServer):
            metrics.engines.refresh(name, backend)
    for route, stack in core.runtime.stacks.items():
        for name, state in stack.pool.breaker_states().items():
            metrics.breaker_open.labels(route, name).set(state != "closed")
        metrics.pools.refresh(stack.pool)
        if stack.batches is not None:
            metrics.batching.refresh(route, stack.batches)
    if core.runtime.prober is not None:
        metrics.pools.refresh_probes(core.runtime.prober)
    if core.runtime.semantic is not None:
        for route, stage in core.runtime.semantic.stages.items():
            metrics.semantic.refresh(route, stage)
        metrics.semantic.refresh_store(core.runtime.semantic.answers)
    if core.runtime.fleet is not None:
        metrics.routing.refresh(core.runtime.fleet)
    for name, feed in core.runtime.kv_feeds.items():
        metrics.kv.refresh(name, feed)
    if core.runtime.autoscale is not None:
        metrics.scaling.refresh(core.runtime.autoscale)
    for route, gate in _gates_of(core.runtime).items():
        metrics.admission.refresh(route, gate)
    if batches is not None:
        _retire_gone(metrics.batches.gauges(), metrics.batches.refresh(batches))
    held = store.statistics()
    metrics.store_entries.set(held.entries)
    metrics.store_bytes.set(held.bytes)
    metrics.store_errors.set(held.errors)


def retire_gauges(core: Core, previous: Runtime) -> None:
    """Take away the series of what the policy in force does not have any more: its revision, backends, breakers."""
    metrics = core.metrics
    runtime = core.runtime
    if previous.revision != runtime.revision:
        _retire(metrics.policy_info, previous.revision)
    for name in previous.leaves.keys() - runtime.leaves.keys():
        _retire(metrics.backend_in_flight, name)
        _retire(metrics.backend_connections, name, "opened")
        _retire(metrics.backend_connections, name, "reused")
    for name, leaf in previous.leaves.items():
        if runtime.leaves.get(name) is not leaf:
            gauges, labels = metrics.engines.retire(name)
            for gauge in gauges:
                _retire(gauge, *labels)
    stages = runtime.semantic.stages if runtime.semantic is not None else {}
    for route, stage in previous.semantic.stages.items() if previous.semantic is not None else ():
        # What was counted since the last look would be lost with the stage.
        metrics.semantic.refresh(route, stage)
        if route not in stages:
            for gauge, label in metrics.semantic.retire(route):
                _retire(gauge, label)
    if previous.fleet is not None:
        metrics.routing.refresh(previous.fleet)
        kept_replicas = runtime.fleet.names if runtime.fleet is not None else frozenset()
        _retire_gone(metrics.routing.gauges(), previous.fleet.names - kept_replicas)
    for name, feed in previous.kv_feeds.items():
        metrics.kv.refresh(name, feed)
    _retire_gone(metrics.kv.gauges(), previous.kv_feeds.keys() - runtime.kv_feeds.keys())
    if previous.autoscale is not None:
        kept_routes = runtime.autoscale.signals().keys() if runtime.autoscale is not None else frozenset()
        metrics.scaling.refresh(previous.autoscale)
        _retire_gone(metrics.scaling.metrics(), previous.autoscale.signals().keys() - kept_routes)
    gates = _gates_of(previous)
    for route, gate in gates.items():
        metrics.admission.refresh(route, gate)
    _retire_gone(metrics.admission.gauges(), gates.keys() - _gates_of(runtime).keys())
    if previous.prober is not None:
        metrics.pools.refresh_probes(previous.prober)
        kept_patients = runtime.prober.patients.keys() if runtime.prober is not None else frozenset()
        _retire_gone((metrics.pools.up,), previous.prober.patients.keys() - kept_patients)
    for route, stack in previous.stacks.items():
        if stack.batches is not None:
            metrics.batching.refresh(route, stack.batches)
            if route not in runtime.stacks or runtime.stacks[route].batches is None:
                _retire_gone(metrics.batching.gauges(), (route,))
        metrics.pools.refresh(stack.pool)
        kept = runtime.stacks[route].pool.breaker_states() if route in runtime.stacks else {}
        for name in stack.pool.breaker_states().keys() - kept.keys():
            _retire(metrics.breaker_open, route, name)


def _gates_of(runtime: Runtime) -> Mapping[str, Gate]:
    return runtime.admission.gates if runtime.admission is not None else {}


def _retire_gone(gauges: Iterable[Gauge], names: Iterable[str]) -> None:
    for gauge, name in product(gauges, names):
        _retire(gauge, name)


def _retire(gauge: Gauge, *labels: str) -> None:
    if shares_metrics():
        # prometheus_client cannot take a series out of the files that workers share.
        gauge.labels(*labels).set(0)
    else:
        gauge.remove(*labels)

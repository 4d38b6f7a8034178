"""Copies what requests, backends, breakers and stores have counted into the metrics, when somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from backends.protocol import Backend, ModelServer
from gateway.core import Core
from gateway.process.slices import Slices
from gateway.settings import shares_metrics
from policies.batching.embeddings import EmbeddingBatches

if TYPE_CHECKING:
    from prometheus_client import Gauge

    from gateway.batches.service import Batches
    from gateway.metrics.metrics import Metrics
    from gateway.runtime import Runtime, Stack
    from policies.admission.gate import Gate
    from policies.cache.store import Store
    from policies.failures import Failures


async def refresh_gauges(
    core: Core,
    store: Store,
    batches: Batches | None = None,
    *,
    failures: Failures,
    others: Sequence[Failures] = (),
    fail: Callable[[str], None],
) -> None:
    """Bring counters and every gauge that mirrors a `statistics()` up to date, a slice at a time.

    What fails is left as it was, and is one of the `failures`; `others` are counted with them. `fail` is told why of a
    model that will not answer any more.
    """
    slices = Slices(core.clock)
    for step in core.observer.flushes():
        step()
        await slices.give_way()
    is_over = False
    while not is_over:
        runtime = core.runtime
        for step in _steps(core, runtime, store, batches, fail):
            try:
                step()
            except Exception as error:  # the border of background work: the others are to be shown
                failures.note(error)
            await slices.give_way()
            if core.runtime is not runtime:
                # Another policy took over meanwhile; what it does not have any more must not come back.
                break
        else:
            is_over = True
    for each in (failures, core.observer.failures, *others, *runtime.failures()):
        if number := each.take():
            core.metrics.background_failures.labels(each.work).inc(number)


def _steps(
    core: Core, runtime: Runtime, store: Store, batches: Batches | None, fail: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Short pieces of work, one for each backend, route, and whatever else there is."""
    metrics = core.metrics
    yield lambda: metrics.in_flight.set(core.in_flight)
    yield lambda: metrics.body_bytes.set(core.bodies.num_bytes)
    yield lambda: metrics.answer_bytes.set(core.answers.num_bytes)
    for name, backend in runtime.leaves.items():
        yield partial(_refresh_backend, metrics, name, backend, fail)
    for stack in runtime.stacks.built():
        yield partial(_refresh_stack, metrics, stack.policy.name, stack)
    if runtime.prober is not None:
        yield partial(metrics.pools.refresh_probes, runtime.prober)
    if runtime.semantic is not None:
        for route, stage in runtime.semantic.stages.items():
            yield partial(metrics.semantic.refresh, route, stage)
        yield partial(metrics.semantic.refresh_store, runtime.semantic.answers)
    if runtime.fleet is not None:
        yield partial(metrics.routing.refresh_tally, runtime.fleet)
        for replica in runtime.fleet.statistics():
            yield partial(metrics.routing.refresh_replica, replica)
    for name, feed in runtime.kv_feeds.items():
        yield partial(metrics.kv.refresh, name, feed)
    if runtime.autoscale is not None:
        for route in runtime.autoscale.routes:
            yield partial(metrics.scaling.refresh, route, runtime.autoscale)
    for route, gate in _gates_of(runtime).items():
        yield partial(metrics.admission.refresh, route, gate)
    if batches is not None:
        yield lambda: _retire_gone(metrics.batches.gauges(), metrics.batches.refresh(batches))
    yield partial(_refresh_store, metrics, store)


def _refresh_backend(metrics: Metrics, name: str, backend: Backend, fail: Callable[[str], None]) -> None:
    counted = backend.statistics()
    metrics.backend_in_flight.labels(name).set(counted.in_flight)
    metrics.backend_connections.labels(name, "opened").set(counted.connections_opened)
    metrics.backend_connections.labels(name, "reused").set(counted.connections_reused)
    if isinstance(backend, ModelServer):
        now = metrics.engines.refresh(name, backend)
        if now is not None and now.failure is not None:
            fail(f"backend {name}: {now.failure}")


def _refresh_stack(metrics: Metrics, route: str, stack: Stack) -> None:
    metrics.pools.refresh(stack.pool)
    metrics.pools.refresh_breakers(route, stack.pool.breaker_states())
    windows = _windows_of(stack)
    if windows is not None:
        metrics.batching.refresh(route, windows)


def _windows_of(stack: Stack) -> EmbeddingBatches | None:
    return next((stage for stage in stack.stages if isinstance(stage, EmbeddingBatches)), None)


def _refresh_store(metrics: Metrics, store: Store) -> None:
    held = store.statistics()
    metrics.store_entries.set(held.entries)
    metrics.store_bytes.set(held.bytes)
    metrics.store_errors.set(held.errors)


async def retire_gauges(core: Core, previous: Runtime) -> None:
    """Take away the series of what the policy in force does not have any more, a slice at a time.

    What its parts have counted since the last look is added first, for it would be lost with them.
    """
    slices = Slices(core.clock)
    for step in _retirements(core.metrics, previous, core.runtime):
        step()
        await slices.give_way()


def _retirements(metrics: Metrics, previous: Runtime, runtime: Runtime) -> Iterator[Callable[[], None]]:
    if previous.revision != runtime.revision:
        yield partial(_retire, metrics.policy_info, previous.revision)
    for name, leaf in previous.leaves.items():
        if runtime.leaves.get(name) is not leaf:
            yield partial(_retire_backend, metrics, name, is_gone=name not in runtime.leaves)
    stages = runtime.semantic.stages if runtime.semantic is not None else {}
    for route, stage in previous.semantic.stages.items() if previous.semantic is not None else ():
        yield partial(metrics.semantic.refresh, route, stage)
        if route not in stages:
            yield partial(_retire_gone, metrics.semantic.gauges(), (route,))
    if previous.fleet is not None:
        yield partial(metrics.routing.refresh_tally, previous.fleet)
        kept_replicas = runtime.fleet.names if runtime.fleet is not None else frozenset()
        for name in previous.fleet.names - kept_replicas:
            yield partial(_retire_gone, metrics.routing.gauges(), (name,))
    for name, feed in previous.kv_feeds.items():
        yield partial(metrics.kv.refresh, name, feed)
    yield partial(_retire_gone, metrics.kv.gauges(), previous.kv_feeds.keys() - runtime.kv_feeds.keys())
    if previous.autoscale is not None:
        kept_routes = runtime.autoscale.routes if runtime.autoscale is not None else frozenset[str]()
        for route in previous.autoscale.routes - kept_routes:
            yield partial(_retire_gone, metrics.scaling.metrics(), (route,))
    gates = _gates_of(runtime)
    for route, gate in _gates_of(previous).items():
        yield partial(metrics.admission.refresh, route, gate)
        if route not in gates:
            yield partial(_retire_gone, metrics.admission.gauges(), (route,))
    if previous.prober is not None:
        yield partial(metrics.pools.refresh_probes, previous.prober)
        kept_patients = runtime.prober.patients.keys() if runtime.prober is not None else frozenset()
        yield partial(_retire_gone, (metrics.pools.up,), previous.prober.patients.keys() - kept_patients)
    for stack in previous.stacks.built():
        name = stack.policy.name
        yield partial(_retire_stack, metrics, name, stack, runtime.stacks.if_built(name))


def _retire_backend(metrics: Metrics, name: str, *, is_gone: bool) -> None:
    if is_gone:
        _retire(metrics.backend_in_flight, name)
        _retire(metrics.backend_connections, name, "opened")
        _retire(metrics.backend_connections, name, "reused")
    gauges, labels = metrics.engines.retire(name)
    for gauge in gauges:
        _retire(gauge, *labels)


def _retire_stack(metrics: Metrics, route: str, stack: Stack, kept: Stack | None) -> None:
    windows = _windows_of(stack)
    if windows is not None:
        metrics.batching.refresh(route, windows)
        if kept is None or _windows_of(kept) is None:
            _retire_gone(metrics.batching.gauges(), (route,))
    metrics.pools.refresh(stack.pool)
    names = stack.pool.breaker_states().keys() - (kept.pool.breaker_states().keys() if kept is not None else set())
    for name in metrics.pools.forget_breakers(route, names):
        _retire(metrics.pools.breaker_open, route, name)


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

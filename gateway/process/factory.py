"""Builds one worker's application: of a policy that was read already, or from the settings in its environment alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from io import FileIO
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics

from backends.clock import SystemClock
from backends.config import Config
from backends.errors import ConfigurationError
from backends.protocol import Backend
from backends.registry import Registry
from gateway.app import Application
from gateway.assembly.assemble import Prepared, assemble, assemble_in_steps, prepare
from gateway.assembly.checks import check_batches, check_resume, check_speculation
from gateway.assembly.keys import build_stored_keys, check_key_names
from gateway.assembly.limits import build_reserving
from gateway.assembly.stores import build_batches, build_ledger, build_ledger_reader, build_owners, build_store
from gateway.batches.metrics import BatchesMetrics
from gateway.core import Core
from gateway.keys.known_keys import RowReader
from gateway.keys.metrics import KeysMetrics
from gateway.ledger.metrics import LedgerMetrics
from gateway.limits.metrics import LimitMetrics
from gateway.metrics.metrics import Metrics
from gateway.metrics.process import ProcessMetrics
from gateway.metrics.requests import RequestMetrics
from gateway.metrics.store import StoreMetrics
from gateway.process.aside import run_aside
from gateway.process.garbage import without_full_collections
from gateway.process.slices import Slices
from gateway.record.access_log import AccessLog
from gateway.record.booking import Booking
from gateway.record.exchange import Observer
from gateway.record.lines_for_people import LinesForPeople
from gateway.record.savings_metrics import SavingsMetrics
from gateway.record.tracing import otlp_tracer
from gateway.reload import Reloader
from gateway.revisions import Revision, Revisions
from gateway.runtime import Runtime
from gateway.settings import Settings, environment, no_color, shared_directory
from policies.limits.raises import Raises
from policies.policy_file.load import LoadedPolicy, check_source
from policies.policy_file.locate import Document, dissolve
from policies.policy_file.sources import PolicyFiles
from policies.schema import Policy


def load(settings: Settings, registry: Registry, files: PolicyFiles | None = None) -> LoadedPolicy:
    """The policy file that the settings name, read and checked; `files` are those that it is made of.

    Raises: ConfigurationError.
    """
    files = files or PolicyFiles(_policy_file(settings))

    def settings_of(kind: str) -> type[Config]:
        return registry.kind(kind).config

    with without_full_collections():
        loaded = check_source(files.read(), files.path, environment(), settings_of)
    stores = loaded.policy.stores
    if settings.workers > 1 and stores.semantic.folder is not None and stores.redis is None:
        raise ConfigurationError(
            f"stores.semantic.folder is for one worker, and there are {settings.workers}: use stores.redis instead"
        )
    if _has_rules(loaded.policy) and not _can_count(loaded.policy, settings):
        raise ConfigurationError(
            f"`limits` and `budgets` are counted in one process, and there are {settings.workers}: use stores.redis"
        )
    return loaded if settings.kernels == "auto" else _with_reference_kernels(loaded)


def _access_log(settings: Settings, output: FileIO, dropped: Counter) -> AccessLog:
    """For people on a terminal, where nothing else is asked for."""
    is_terminal = output.isatty()
    if settings.access_log == "json" or (settings.access_log == "auto" and not is_terminal):
        return AccessLog(output, dropped)
    return AccessLog(output, dropped, LinesForPeople(color=is_terminal and not no_color()).encode)


def _has_rules(policy: Policy) -> bool:
    return bool(policy.limits or policy.budgets) or any(key.has_rules for key in policy.keys)


def _can_count(policy: Policy, settings: Settings) -> bool:
    """Whether limits and budgets are counted once, and not by each worker for itself."""
    return settings.workers == 1 or policy.stores.redis is not None


def _row_reader(policy: Policy, settings: Settings) -> RowReader:
    return RowReader(policy.time_zone, can_count=_can_count(policy, settings))


def _policy_file(settings: Settings) -> Path:
    if settings.policy is None:
        raise ConfigurationError("no policy file: name one, as in `slipstream serve policy.yaml`")
    return settings.policy


def _without_text(loaded: LoadedPolicy) -> LoadedPolicy:
    """Without what the files say, of which a gateway that serves has no use: there may be millions of values."""
    dissolve(loaded.document)
    return replace(loaded, document=Document(None, {}, ()))


def _with_reference_kernels(loaded: LoadedPolicy) -> LoadedPolicy:
    backends = {
        name: (kind, config.model_copy(update={"kernels": "reference"}) if kind == "engine" else config)
        for name, (kind, config) in loaded.backends.items()
    }
    return replace(loaded, backends=backends)


def create_application() -> Application:
    """The application of this process, from its environment alone.

    Raises: ConfigurationError.
    """
    settings = Settings()
    files = PolicyFiles(_policy_file(settings))
    registry = Registry()
    return application_of(settings, registry, files, load(settings, registry, files))


def application_of(settings: Settings, registry: Registry, files: PolicyFiles, loaded: LoadedPolicy) -> Application:
    """The application of a policy that `load` has read from these files, which it watches from now on.

    Raises: ConfigurationError.
    """
    # prometheus_client would add a series `..._created` to each counter, which no query needs.
    disable_created_metrics()
    clock = SystemClock()
    loaded = _without_text(loaded)
    store = build_store(loaded.policy.stores, clock)
    metrics = Metrics(CollectorRegistry())
    ledger = None if loaded.policy.ledger is None else build_ledger(loaded.policy.ledger, clock)
    raises = Raises()
    keys = build_stored_keys(loaded.policy.stores.keys, clock, _row_reader(loaded.policy, settings), raises)
    access_log = None
    if settings.access_log != "off":
        output = FileIO(sys.stdout.fileno(), "wb", closefd=False)
        access_log = _access_log(settings, output, metrics.of(ProcessMetrics).log_lines_dropped)
    observer = Observer(clock, metrics, access_log)
    core = Core(
        settings,
        clock,
        assemble(loaded, clock, store, registry, workers=settings.workers, keys=keys),
        metrics=metrics,
        observer=observer,
        tracer=otlp_tracer(clock) if settings.tracing else None,
        owners=build_owners(loaded.policy.stores, clock, shared_directory()),
        booking=None if ledger is None else Booking(ledger, clock, observer, metrics.of(SavingsMetrics)),
        reserving=build_reserving(loaded.policy, clock, lambda: core.runtime, raises, ledger),
        keys=keys,
    )

    def check(changed: LoadedPolicy, leaves: Mapping[str, Backend]) -> None:
        check_batches(changed, leaves)
        check_resume(changed, leaves)
        check_speculation(changed, leaves)

    def prepare_changed() -> Prepared:
        return prepare(_without_text(load(settings, registry, files)), clock, keys)

    async def build(previous: Runtime) -> Runtime:
        prepared = await run_aside(prepare_changed)
        changed = prepared.loaded
        if changed.policy.stores != previous.loaded.policy.stores:
            raise ConfigurationError("`stores` cannot change while the gateway runs; restart it for that")
        if changed.policy.ledger != previous.loaded.policy.ledger:
            raise ConfigurationError("`ledger` cannot change while the gateway runs; restart it for that")
        check_key_names(changed, previous, keys)
        if settings.is_public and not changed.policy.asks_for_keys:
            raise ConfigurationError(f"`keys` cannot go away while the gateway listens on {settings.host}")
        steps = assemble_in_steps(prepared, clock, store, registry, previous, workers=settings.workers, check=check)
        slices = Slices(clock)
        while True:
            try:
                next(steps)
            except StopIteration as over:
                runtime: Runtime = over.value
                return runtime
            await slices.give_way()

    check(loaded, core.runtime.leaves)
    batches = build_batches(loaded.policy.stores, core)
    metrics.of(RequestMetrics).watch(core)
    metrics.of(StoreMetrics).watch(store)
    metrics.of(LimitMetrics).watch(core.reserving.limiter)
    if batches is not None:
        metrics.of(BatchesMetrics).watch(batches)
    if keys is not None:
        metrics.of(KeysMetrics).watch(keys)
    if ledger is not None:
        assert core.booking is not None, "it goes with the ledger"
        metrics.of(LedgerMetrics).watch(ledger, core.booking.drift)
    reloader = Reloader(core, files, build, Revisions(Revision(loaded.revision, clock.wall(), files.texts)))
    return Application(core, store, reloader, batches, ledger, build_ledger_reader(loaded.policy))

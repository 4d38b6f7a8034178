"""Metrics of the process beside its requests: the policy in force, its list prices, the log, its memory, its loops.

`docs/metrics.md` describes each of them; a test compares the two. Who sees such a thing counts it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge

from gateway.metrics.group import MetricGroup, Step
from gateway.process.memory import resident_bytes

if TYPE_CHECKING:
    from gateway.runtime import Runtime


class ProcessMetrics(MetricGroup):
    """Every metric of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_")
        self.policy_info = self.gauge("policy_info", "1 for the revision in force.", "revision", workers="max")
        self.policy_reloads = self.counter("policy_reloads", "Changed policy files, taken over or refused.", "outcome")
        for outcome in ("applied", "refused"):
            self.policy_reloads.labels(outcome)
        self.policy_file_refused = self.gauge(
            "policy_file_refused",
            "1 while the policy file is not what is in force, since it was refused.",
            workers="livemax",
        )
        self.log_lines_dropped = self.counter(
            "log_lines_dropped", "Log lines dropped for a reader that does not take them."
        )
        self.background_failures = self.counter("background_failures", "Failures of work that begins again.", "loop")

        self.prices_list_timestamp = self.gauge(
            "prices_list_timestamp_seconds",
            "The day from which the newest of the list prices is, in seconds since the Unix epoch.",
            "version",
            workers="max",
        )
        # The name that every client library of Prometheus has for it.
        self.resident_memory = self.add(
            Gauge(
                "process_resident_memory_bytes",
                "Memory of the gateway's processes.",
                registry=registry,
                multiprocess_mode="livesum",
            )
        )

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """The memory, and where the policy has list prices, their age."""
        yield self._weigh
        listed = runtime.listed_prices
        if listed is not None and listed.newest_day is not None:
            moment = datetime.combine(listed.newest_day, time(0), UTC)
            yield partial(self.prices_list_timestamp.labels(listed.version).set, moment.timestamp())

    def _weigh(self) -> None:
        resident = resident_bytes()
        if resident is not None:
            self.resident_memory.set(resident)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """The revision before is not in force any more, and perhaps no list."""
        before, now = previous.listed_prices, runtime.listed_prices
        if before is not None and before.newest_day is not None and now is None:
            yield from self.drops("version", (before.version,))
        if previous.revision != runtime.revision:
            yield from self.drops("revision", (previous.revision,))

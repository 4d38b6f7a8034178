"""Metrics of the process beside its requests: the policy in force, the log, work in the background.

`docs/metrics.md` describes each of them; a test compares the two. Who sees such a thing counts it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step

if TYPE_CHECKING:
    from gateway.runtime import Runtime


class ProcessMetrics(MetricGroup):
    """Every metric of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_")
        self.policy_info = self.gauge("policy_info", "1 for the revision in force.", "revision", workers="max")
        self.policy_reloads = self.counter("policy_reloads", "Changed policy files, taken over or refused.", "outcome")
        self.log_lines_dropped = self.counter(
            "log_lines_dropped", "Log lines dropped for a reader that does not take them."
        )
        self.background_failures = self.counter("background_failures", "Failures of work that begins again.", "loop")

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """The revision before is not in force any more."""
        if previous.revision != runtime.revision:
            yield from self.drops("revision", (previous.revision,))

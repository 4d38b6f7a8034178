"""Metrics of feeds that tell what engines keep of prompts, copied from what they have counted when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. Labels are backends of the policy file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup, Step

if TYPE_CHECKING:
    from gateway.runtime import Runtime
    from policies.pool.prompts.kv_feed import KvFeed


class KvMetrics(MetricGroup):
    """Every metric of these feeds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_kv_", "backend")
        self.events = self.counter("events", "What an engine's KV events said.", "kind")
        self.live = self.gauge("live", "1 while an engine's KV events are followed.", workers="livemin")
        self.blocks = self.gauge("blocks", "An engine's blocks whose text is known.", workers="livemax")

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """A step a feed."""
        for backend, feed in runtime.kv_feeds.items():
            yield partial(self._copy, backend, feed)

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """A step a feed, and one for each that is gone."""
        yield from self.refresh(previous)
        yield from self.drops("backend", previous.kv_feeds.keys() - runtime.kv_feeds.keys())

    def _copy(self, backend: str, feed: KvFeed) -> None:
        for kind, number in feed.take_counts().items():
            self.events.labels(backend, kind).inc(number)
        self.live.labels(backend).set(feed.is_live)
        self.blocks.labels(backend).set(feed.num_blocks)

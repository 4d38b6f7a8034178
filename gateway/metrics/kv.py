"""Metrics of feeds that tell what engines keep of prompts, copied from what they have counted when somebody looks.

`docs/metrics.md` describes each of them; a test compares the two. Labels are backends of the policy file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge

if TYPE_CHECKING:
    from policies.pool.prompts.kv_feed import KvFeed


class KvMetrics:
    """Every metric of these feeds, on the gateway's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "slipstream_kv_events", "What an engine's KV events said.", ("backend", "kind"), registry=registry
        )
        self.live = Gauge(
            "slipstream_kv_live",
            "1 while an engine's KV events are followed.",
            ("backend",),
            registry=registry,
            multiprocess_mode="livemin",
        )
        self.blocks = Gauge(
            "slipstream_kv_blocks",
            "An engine's blocks whose text is known.",
            ("backend",),
            registry=registry,
            multiprocess_mode="livemax",
        )

    def metrics(self) -> list[Gauge | Counter]:
        """All of them, for who compares."""
        return [self.events, self.live, self.blocks]

    def gauges(self) -> list[Gauge]:
        """Those that a feed leaves behind; their label is its backend."""
        return [self.live, self.blocks]

    def refresh(self, backend: str, feed: KvFeed) -> None:
        """Bring them up to date."""
        for kind, number in feed.take_counts().items():
            self.events.labels(backend, kind).inc(number)
        self.live.labels(backend).set(feed.is_live)
        self.blocks.labels(backend).set(feed.num_blocks)

"""What every group of metrics can do."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from gateway.metrics.group import MetricGroup
from gateway.metrics.kv import KvMetrics
from gateway.metrics.metrics import GROUPS, Metrics


class ThingMetrics(MetricGroup):
    """A group of things with a name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "thing_", "name")
        self.seen = self.counter("seen", "Things seen.")
        self.size = self.gauge("size", "A thing's size.")
        self.parts = self.gauge("parts", "A thing's parts.", "kind")


def _lines(registry: CollectorRegistry) -> set[str]:
    return {line for line in generate_latest(registry).decode().splitlines() if "{" in line and "created" not in line}


def test_group_takes_away_gauges_that_have_no_label_but_the_one_given() -> None:
    """What is counted stays; of others nothing goes, and who never was there leaves nothing."""
    registry = CollectorRegistry()
    things = ThingMetrics(registry)
    for name in ("a", "b"):
        things.seen.labels(name).inc()
        things.size.labels(name).set(1)
        things.parts.labels(name, "round").set(2)

    for step in things.drops("name", ["a", "nobody"]):
        step()

    assert _lines(registry) == {
        'thing_seen_total{name="a"} 1.0',
        'thing_seen_total{name="b"} 1.0',
        'thing_size{name="b"} 1.0',
        'thing_parts{kind="round",name="a"} 2.0',
        'thing_parts{kind="round",name="b"} 2.0',
    }


def test_group_knows_its_metrics_in_the_order_in_which_it_made_them() -> None:
    """The documentation has them in this order too."""
    things = ThingMetrics(CollectorRegistry())

    assert things.metrics == [things.seen, things.size, things.parts]


def test_metrics_have_each_group_once() -> None:
    """Who counts by himself asks for his group."""
    metrics = Metrics(CollectorRegistry())

    assert [type(group) for group in metrics.groups] == list(GROUPS)
    assert metrics.of(KvMetrics) is metrics.groups[GROUPS.index(KvMetrics)]

"""What every group of metrics is: one file that makes its metrics, copies what has been counted, and takes away what is
over. `metrics.py` lists the groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.settings import shares_metrics

if TYPE_CHECKING:
    from gateway.runtime import Runtime

Step = Callable[[], None]
"""A short piece of work, between two of which calls may go on."""
AcrossWorkers = Literal["livesum", "livemax", "livemin", "max"]
_Metric = TypeVar("_Metric", bound=Counter | Gauge | Histogram)


class MetricGroup:
    """The metrics of one thing, on the gateway's registry, in the order in which a subclass makes them."""

    def __init__(self, registry: CollectorRegistry, prefix: str, *labels: str) -> None:
        """`prefix`: what all their names begin with; `labels`: those that all of them have, before their own."""
        self._registry = registry
        self._prefix = prefix
        self._labels = labels
        self._gauges: defaultdict[tuple[str, ...], list[Gauge]] = defaultdict(list)
        self.metrics: list[Counter | Gauge | Histogram] = []

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """A new one; its name is shown with `_total` behind it."""
        return self.add(Counter(self._prefix + name, meaning, (*self._labels, *labels), registry=self._registry))

    def gauge(self, name: str, meaning: str, *labels: str, workers: AcrossWorkers = "livesum") -> Gauge:
        """A new one; `workers` says what those of several workers come to."""
        labels = (*self._labels, *labels)
        made = Gauge(self._prefix + name, meaning, labels, registry=self._registry, multiprocess_mode=workers)
        self._gauges[labels].append(made)
        return self.add(made)

    def histogram(self, name: str, meaning: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
        """A new one."""
        labels = (*self._labels, *labels)
        return self.add(Histogram(self._prefix + name, meaning, labels, buckets=buckets, registry=self._registry))

    def add(self, metric: _Metric) -> _Metric:
        """One more of the group."""
        self.metrics.append(metric)
        return metric

    def refresh(self, runtime: Runtime) -> Iterator[Step]:
        """Steps that bring the group up to date with what is in force."""
        yield from ()

    def retire(self, previous: Runtime, runtime: Runtime) -> Iterator[Step]:
        """Steps that add what the parts of `previous` have counted last, and take away what `runtime` does not have."""
        yield from ()

    def drops(self, label: str, values: Iterable[str]) -> Iterator[Step]:
        """A step a value, which takes away the series of those gauges that have no label but this."""
        for value in values:
            yield partial(self._drop, label, value)

    def _drop(self, label: str, value: str) -> None:
        for gauge in self._gauges[label,]:
            drop_series(gauge, value)


def drop_series(gauge: Gauge, *labels: str) -> None:
    """Take one series away."""
    if shares_metrics():
        # prometheus_client cannot take a series out of the files that workers share.
        gauge.labels(*labels).set(0)
    else:
        gauge.remove(*labels)

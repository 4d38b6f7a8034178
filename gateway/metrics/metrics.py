"""All metrics of a process: one registry, and the groups that are on it."""

from __future__ import annotations

from typing import TypeVar

from prometheus_client import CollectorRegistry

from gateway.batches.metrics import BatchesMetrics
from gateway.keys.metrics import KeysMetrics
from gateway.ledger.metrics import LedgerMetrics
from gateway.limits.metrics import LimitMetrics
from gateway.metrics.admission import AdmissionMetrics
from gateway.metrics.autoscaling import AutoscalingMetrics
from gateway.metrics.backend import BackendMetrics
from gateway.metrics.batching import BatchingMetrics
from gateway.metrics.charges import ChargeMetrics
from gateway.metrics.engine import EngineMetrics
from gateway.metrics.group import MetricGroup
from gateway.metrics.kv import KvMetrics
from gateway.metrics.pool import PoolMetrics
from gateway.metrics.process import ProcessMetrics
from gateway.metrics.requests import RequestMetrics
from gateway.metrics.routing import RoutingMetrics
from gateway.metrics.semantic import SemanticMetrics
from gateway.metrics.store import StoreMetrics
from gateway.metrics.upstream_quotas import UpstreamQuotaMetrics
from gateway.record.mirror_metrics import MirrorMetrics
from gateway.record.savings_metrics import SavingsMetrics

GROUPS = (
    RequestMetrics,
    ChargeMetrics,
    ProcessMetrics,
    BackendMetrics,
    UpstreamQuotaMetrics,
    StoreMetrics,
    EngineMetrics,
    SemanticMetrics,
    RoutingMetrics,
    KvMetrics,
    AutoscalingMetrics,
    PoolMetrics,
    BatchingMetrics,
    BatchesMetrics,
    LedgerMetrics,
    SavingsMetrics,
    MirrorMetrics,
    KeysMetrics,
    LimitMetrics,
    AdmissionMetrics,
)
"""In the order in which /metrics shows them."""
_Group = TypeVar("_Group", bound=MetricGroup)


class Metrics:
    """Every metric of the gateway, on a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.groups: tuple[MetricGroup, ...] = tuple(group(registry) for group in GROUPS)

    def of(self, kind: type[_Group]) -> _Group:
        """The group of that kind, for who counts in it by himself or gives it something to watch."""
        return next(group for group in self.groups if isinstance(group, kind))

"""What metrics tell of batches: what there is to do, and what was done since somebody looked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import msgspec


class RouteQueue(msgspec.Struct, frozen=True):
    """Lines of a route that have not been asked yet, and for how long the oldest has waited."""

    waiting: int
    oldest_s: float


class BatchStatistics(msgspec.Struct, frozen=True):
    """What there is to do, as the driver has last seen it; empty where this process does not drive."""

    batches: Mapping[str, int] = {}
    routes: Mapping[str, RouteQueue] = {}
    jobs: Mapping[str, int] = {}
    stored_bytes: int = 0
    is_full: bool = False
    """Whether lines wait because the disk of batches has no room for their answers."""


class Tally(msgspec.Struct):
    """What was counted since somebody looked, by route."""

    lines: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """By route and how they ended: answered, failed, expired, cancelled."""
    tokens: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    cost: dict[str, float] = msgspec.field(default_factory=dict)
    batches: Counter[str] = msgspec.field(default_factory=Counter)
    """By the status that they ended with."""


class Counted(Protocol):
    """Whoever drives batches, as metrics see it."""

    def statistics(self) -> BatchStatistics:
        """What there is to do."""

    def take_tally(self) -> Tally:
        """What was done since the last time."""

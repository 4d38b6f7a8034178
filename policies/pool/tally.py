"""What a pool has counted, as who asks for it gets it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class RetryStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What retries a pool made (`retries`), and calls that stayed failed: out of attempts, or out of budget."""

    retries: int
    retries_exhausted: int
    retries_over_budget: int


class PoolTally(msgspec.Struct, frozen=True):
    """What has happened since the last time: by what it is, and openings of breakers by member."""

    counts: Mapping[str, int]
    ejections: Mapping[str, int]

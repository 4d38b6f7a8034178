"""How many replicas a pool's traffic is worth, and how long until its answers come late. Pure: told what was seen.

An autoscaler reads the figures; nothing here starts or stops a replica.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

PREFILL_TARGET, MEMORY_TARGET = 0.75, 0.85
"""How busy with prompts and how full of keys and values a replica should be: the rest is for bursts."""
UP_AFTER_S, DOWN_AFTER_S = 30.0, 300.0
"""For how long more must have been needed, and fewer enough, without a break."""
_SHED_WEIGHT = 2.0


class PoolSample(NamedTuple):
    """A pool at one moment. `prefill` and `memory` are in replicas: so many would be wholly busy, and wholly full.

    `shed` is the share of calls turned away since the sample before, `backlog_s` the seconds of work that wait in
    front of each replica.
    """

    at: float
    prefill: float
    memory: float
    shed: float
    backlog_s: float


class Scaling:
    """The last five minutes of one pool of so many `replicas`; `limit_s` is how long a first token may take."""

    def __init__(self, replicas: int, limit_s: float) -> None:
        self._replicas = replicas
        self._limit_s = limit_s
        self._samples: deque[PoolSample] = deque()

    def add(self, sample: PoolSample) -> None:
        """What was seen now."""
        samples = self._samples
        samples.append(sample)
        # One older than the window stays, to tell that the window is full.
        while len(samples) > 1 and samples[1].at <= sample.at - DOWN_AFTER_S:
            samples.popleft()

    def desired_replicas(self) -> int:
        """As many as it has, unless more have been needed for half a minute, or fewer were enough for five."""
        if (recent := self._needed_for(UP_AFTER_S)) and min(recent) > self._replicas:
            return math.ceil(min(recent))
        if (whole := self._needed_for(DOWN_AFTER_S)) and max(whole) < self._replicas:
            return max(1, math.ceil(max(whole)))
        return self._replicas

    def time_to_breach_s(self) -> float:
        """Seconds until new prompts wait longer than they may, if all goes on so; inf if it does not get worse."""
        if not self._samples:
            return math.inf
        last = self._samples[-1]
        if last.backlog_s >= self._limit_s:
            return 0.0
        first = next(sample for sample in self._samples if sample.at >= last.at - UP_AFTER_S)
        grown_s = last.backlog_s - first.backlog_s
        if grown_s <= 0:
            return math.inf
        return (self._limit_s - last.backlog_s) * (last.at - first.at) / grown_s

    def _needed_for(self, seconds: float) -> list[float]:
        """Replicas that each of the last samples was worth; none while that much time has not been seen."""
        samples = self._samples
        if not samples or samples[0].at > samples[-1].at - seconds:
            return []
        since = samples[-1].at - seconds
        return [self._needed(sample) for sample in samples if sample.at >= since]

    def _needed(self, sample: PoolSample) -> float:
        return max(
            sample.prefill / PREFILL_TARGET,
            sample.memory / MEMORY_TARGET,
            self._replicas * (1 + _SHED_WEIGHT * sample.shed) if sample.shed else 0.0,
        )

"""Asks backends how they are, whether there are calls or not, and opens and closes their breakers by the answers.

One for each policy in force, opened and closed with it; only backends whose settings say so are asked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from backends.clock import Clock
from backends.errors import PoolTimeout, UpstreamError
from backends.health import HealthConfig, Probed
from policies.loop import Loop
from policies.pool.health.breaker import CircuitBreaker

_JITTER = 0.2
"""Gateways that were started together must not ask together for ever."""

_logger = logging.getLogger(__name__)


class ProbedBackend:
    """One backend under watch: its verdicts in a row, and the breakers in front of it in every route."""

    def __init__(self, backend: Probed, health: HealthConfig, breakers: Sequence[CircuitBreaker]) -> None:
        self.health = health
        self.is_up = True
        self._num_failed = 0
        self._backend = backend
        self._breakers = tuple(breakers)
        # What is down when it is first asked is taken out at once: nobody has seen it working.
        self._failures = health.failures - 1

    async def ask(self) -> None:
        """Ask once, and tell the breakers. Where all connections are in use it is plainly not idle, nor judged."""
        try:
            await self._backend.check_health()
        except PoolTimeout:
            return
        except UpstreamError as error:
            self._note_failure(error)
        else:
            self._failures = 0
            self._show(is_up=True, why="")
            for breaker in self._breakers:
                breaker.mark_up()

    def take_failures(self) -> int:
        """Bad answers since the last time."""
        taken, self._num_failed = self._num_failed, 0
        return taken

    def _note_failure(self, error: UpstreamError) -> None:
        self._num_failed += 1
        self._failures += 1
        if self._failures < self.health.failures:
            return
        self._show(is_up=False, why=error.message)
        # Until well after the next answer: whoever stops asking leaves no breaker open for ever.
        for_s = 2 * (self.health.interval + self.health.timeout)
        for breaker in self._breakers:
            breaker.mark_down(for_s)

    def _show(self, *, is_up: bool, why: str) -> None:
        if is_up != self.is_up:
            self.is_up = is_up
            _logger.warning("backend %s is %s%s", self._backend.name, "up again" if is_up else "down: ", why)


class Prober:
    """Asks every patient in its own interval, from `open` to `aclose`."""

    def __init__(self, patients: Mapping[str, ProbedBackend], clock: Clock, random: Random) -> None:
        self.patients = dict(patients)
        self.loops = tuple(Loop("prober", clock) for _ in self.patients)
        """One for each, so that what one backend's check comes to is nothing to the others."""
        self._clock = clock
        self._random = random

    async def open(self) -> None:
        """Begin to ask."""
        for loop, patient in zip(self.loops, self.patients.values(), strict=True):
            loop.start(partial(self._look_after, patient))

    async def aclose(self) -> None:
        """Stop. Safe to call twice."""
        for loop in self.loops:
            await loop.aclose()

    async def _look_after(self, patient: ProbedBackend) -> None:
        while True:
            await patient.ask()
            await self._clock.sleep(patient.health.interval * self._random.uniform(1 - _JITTER, 1 + _JITTER))

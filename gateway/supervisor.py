"""Several worker processes on one socket: starts them, replaces those that die, passes signals on."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from types import FrameType

_logger = logging.getLogger(__name__)
_LIVES_AT_LEAST_S = 5.0
"""A worker that dies sooner, or before it served, would die again; then the gateway gives up instead of spinning."""

Worker = Callable[[Callable[[], None]], None]
"""Runs until it is told to stop by SIGTERM; calls its argument once it serves."""


def supervise(num_workers: int, run: Worker, on_started: Callable[[], None], on_died: Callable[[int], None]) -> None:
    """Keep `num_workers` processes of `run` alive until SIGTERM or SIGINT, then stop them in an orderly way.

    `run` must be picklable; `on_died` gets the process id of a worker that is about to be replaced.
    Raises: SystemExit(1) when workers cannot start.
    """
    context = get_context("spawn")
    fleet = _Fleet(run, on_died)
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, fleet.pass_on)
    try:
        for _ in range(num_workers):
            fleet.start(context.Event())
        if fleet.wait_started():
            on_started()
        fleet.watch()
    finally:
        fleet.stop()


class _Fleet:
    """The processes and when each of them began."""

    def __init__(self, run: Worker, on_died: Callable[[int], None]) -> None:
        self._run = run
        self._on_died = on_died
        self._began: dict[SpawnProcess, float] = {}
        self._started: dict[SpawnProcess, Event] = {}
        self._is_stopping = False

    def start(self, started: Event) -> None:
        process = get_context("spawn").Process(target=_worker, args=(self._run, started), name="slipstream-worker")
        process.start()
        self._began[process] = time.monotonic()
        self._started[process] = started

    def wait_started(self) -> bool:
        """Wait until every worker serves; False if one died first."""
        while not all(started.is_set() for started in self._started.values()):
            if self._is_stopping or any(not process.is_alive() for process in self._began):
                return False
            time.sleep(0.02)
        return True

    def watch(self) -> None:
        """Replace workers that die, until told to stop."""
        while not self._is_stopping:
            wait([process.sentinel for process in self._began], timeout=0.5)
            for process in [process for process in self._began if not process.is_alive()]:
                lived_s = time.monotonic() - self._began.pop(process)
                has_served = self._started.pop(process).is_set()
                if self._is_stopping:
                    return
                _logger.error("worker %s ended with %s after %.0f s", process.pid, process.exitcode, lived_s)
                if lived_s < _LIVES_AT_LEAST_S or not has_served:
                    raise SystemExit(1)
                if process.pid is not None:
                    self._on_died(process.pid)
                self.start(get_context("spawn").Event())

    def pass_on(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler: SIGHUP reloads in every worker, the others stop them."""
        if sig != signal.SIGHUP:
            self._is_stopping = True
        for process in self._began:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, sig)

    def stop(self) -> None:
        """Ask the workers that are left to stop, and wait for them."""
        for process in self._began:
            if not self._is_stopping:
                process.terminate()
        for process in self._began:
            process.join()


def _worker(run: Worker, started: Event) -> None:
    run(started.set)

"""Several worker processes on one socket: starts them, replaces those that die, passes on what signals mean.

Workers take no signals from the terminal, only from here. They watch their supervisor in turn: one that is gone cannot
replace them or stop them, so they finish what they have and end (`follow_supervisor`).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from socket import socket
from types import FrameType

_logger = logging.getLogger(__name__)
SIGNALLED = 128
"""An exit code of this and a signal's number is how shells write an end by that signal."""
STOPPED_BY_FORCE = SIGNALLED + signal.SIGINT
"""The exit code after a second Ctrl-C, which cut what was in flight."""
_MAX_FAILED_STARTS = 5
"""A worker that never served that often in a row would not the next time either."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.25, 30.0
_LIVES_AT_LEAST_S = 10.0
"""A worker that dies sooner is started again after a pause, which doubles each time."""
_TICK_S = 0.05
_STOP_MARGIN_S = 10.0
"""Beyond the limits that a worker keeps by itself: then it is killed."""

Worker = Callable[[Callable[[], None]], None]
"""Runs until it is told to stop by SIGTERM, or at once by SIGQUIT; calls its argument once it serves."""


@dataclass(frozen=True, slots=True)
class DrainLimits:
    """How long the port stays open after SIGTERM, and how long what is in flight then may take."""

    delay_s: float
    limit_s: float


def supervise(
    num_workers: int,
    run: Worker,
    listener: socket,
    limits: DrainLimits,
    *,
    on_started: Callable[[], None],
    on_died: Callable[[int], None],
) -> None:
    """Keep `num_workers` processes of `run` alive until SIGTERM or SIGINT, then stop them in an orderly way.

    `run` must be picklable and has a copy of `listener`; the one here is closed when new connections are to be refused.
    `on_died` gets the process id of a worker that is about to be replaced.
    Raises: SystemExit, with 1 where workers cannot start, with the signal's code where it came before they served, or
    was the second Ctrl-C.
    """
    fleet = _Fleet([_Slot() for _ in range(num_workers)], run, listener, limits, on_died)
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, fleet.take_signal)
    # SIGHUP was blocked since the process began. One that came so early reaches no worker, as none has been started.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    try:
        if fleet.start():
            on_started()
        fleet.watch()
    finally:
        fleet.stop()
    if fleet.was_forced:
        _logger.warning("stopped at once; what was in flight is cut")
        raise SystemExit(STOPPED_BY_FORCE)
    if fleet.stopped_early_by is not None:
        raise SystemExit(SIGNALLED + fleet.stopped_early_by)


def follow_supervisor(limits: DrainLimits) -> None:
    """In a worker: stop when the supervisor is gone, however it went. Does nothing in any other process."""
    supervisor = parent_process()
    if supervisor is None:
        return

    def watch() -> None:
        supervisor.join()
        _logger.warning("the supervisor is gone; this worker finishes what it has and ends")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(limits.delay_s + limits.limit_s + _STOP_MARGIN_S)
        os._exit(1)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()


class _Slot:
    """One of the `num_workers` places: the process that fills it now, and how often earlier ones failed."""

    def __init__(self) -> None:
        self.process: SpawnProcess | None = None
        self.num_failed_starts = 0
        self.start_at = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._began = 0.0
        self._started: Event | None = None

    @property
    def has_started(self) -> bool:
        """Whether its process has begun to serve."""
        return self._started is not None and self._started.is_set()

    @property
    def is_serving(self) -> bool:
        """Whether its process has begun to serve and still lives."""
        return self.has_started and self.process is not None and self.process.is_alive()

    def start(self, run: Worker) -> None:
        """Put a new process in it."""
        context = get_context("spawn")
        self._started = context.Event()
        self.process = context.Process(target=_worker, args=(run, self._started), name="slipstream-worker")
        self.process.start()
        self._began = time.monotonic()

    def bury(self) -> None:
        """Its process has died: log how, and set when the next one may be started."""
        assert self.process is not None, "there was one"
        lived_s = time.monotonic() - self._began
        what = "ended" if self.has_started else "could not start, it ended"
        _logger.error("worker %s %s with %s after %.0f s", self.process.pid, what, self.process.exitcode, lived_s)
        self.num_failed_starts = 0 if self.has_started else self.num_failed_starts + 1
        if lived_s >= _LIVES_AT_LEAST_S and self.has_started:
            self._pause_s = _FIRST_PAUSE_S
        self.process = None
        self.start_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)


class _Fleet:
    """All worker processes: starts them, replaces those that die, and stops them."""

    def __init__(
        self, slots: list[_Slot], run: Worker, listener: socket, limits: DrainLimits, on_died: Callable[[int], None]
    ) -> None:
        self.was_forced = False
        self.stopped_early_by: int | None = None
        """The signal that came before all workers served."""
        self._slots = slots
        self._run = run
        self._listener = listener
        self._limits = limits
        self._on_died = on_died
        self._stopping_since: float | None = None
        self._has_started = False

    def start(self) -> bool:
        """Start every worker and wait until all serve; False if one died first, or they are to stop."""
        with _signals_held():
            for slot in self._slots:
                slot.start(self._run)
        while not all(slot.has_started for slot in self._slots):
            if self._stopping_since is not None:
                return False
            if not all(process.is_alive() for process in self._processes()):
                # No client has connected yet, and the worker has logged its reason.
                raise SystemExit(1)
            time.sleep(_TICK_S)
        self._has_started = True
        return True

    def watch(self) -> None:
        """Replace workers that die, until told to stop."""
        while self._stopping_since is None:
            wait([process.sentinel for process in self._processes()], timeout=_TICK_S * 10)
            for slot in self._slots:
                if self._stopping_since is not None:
                    return
                if slot.process is not None and not slot.process.is_alive():
                    self._replace(slot)
                elif slot.process is None and time.monotonic() >= slot.start_at:
                    with _signals_held():
                        slot.start(self._run)

    def take_signal(self, sig: int, frame: FrameType | None) -> None:
        """SIGHUP reloads in every worker; SIGTERM and SIGINT stop them, a second SIGINT at once."""
        if sig == signal.SIGHUP:
            self._send(signal.SIGHUP, self._processes())
        elif self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self.stopped_early_by = None if self._has_started else sig
            self._send(signal.SIGTERM, self._processes())
        elif sig == signal.SIGINT:
            self.was_forced = True
            self._send(signal.SIGQUIT, self._processes())

    def stop(self) -> None:
        """Ask the workers that are left to stop, refuse new connections, and wait for them, in bounds."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
        # This includes workers that were started while the signal came.
        self._send(signal.SIGTERM, self._processes())
        limits = self._limits
        kill_at = self._stopping_since + limits.delay_s + limits.limit_s + _STOP_MARGIN_S
        while (left := [process for process in self._processes() if process.is_alive()]) and not self.was_forced:
            now = time.monotonic()
            if now >= self._stopping_since + limits.delay_s:
                self._listener.close()
            if now >= kill_at:
                break
            wait([process.sentinel for process in left], timeout=_TICK_S)
        self._listener.close()
        for process in self._processes():
            process.join(_STOP_MARGIN_S if self.was_forced else 0)
            if process.is_alive():
                _logger.error("worker %s does not end and is killed", process.pid)
                process.kill()
                process.join()

    def _replace(self, slot: _Slot) -> None:
        assert slot.process is not None, "it has died"
        pid = slot.process.pid
        slot.bury()
        if pid is not None:
            self._on_died(pid)
        if slot.num_failed_starts >= _MAX_FAILED_STARTS and not any(other.is_serving for other in self._slots):
            _logger.critical("workers cannot start: %d have died before they served", slot.num_failed_starts)
            raise SystemExit(1)

    def _processes(self) -> list[SpawnProcess]:
        return [slot.process for slot in self._slots if slot.process is not None]

    def _send(self, sig: signal.Signals, processes: Iterable[SpawnProcess]) -> None:
        for process in processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, sig)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Blocks SIGINT and SIGHUP. Children that are started meanwhile inherit the block, so that the Ctrl-C that a
    terminal sends to the whole group does not reach them; they unblock SIGHUP once they handle it. The supervisor gets
    both signals later.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGHUP])


def _worker(run: Worker, started: Event) -> None:
    run(started.set)

"""Drives every batch to its end. Of all processes that share the folder, the one that holds the lock file does so.

The operating system releases the lock at the moment its holder dies. So no lease has to expire before another process
takes over, and there are never two drivers.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from backends.errors import SlipstreamError
from gateway.batches.batch_store import BatchStore
from gateway.batches.callers import caller_of, stack_for_line
from gateway.batches.calls import LineCalls
from gateway.batches.check import check_batch
from gateway.batches.file_store import FileStore
from gateway.batches.job_store import JobStore
from gateway.batches.keyed_work import KeyedWork
from gateway.batches.outcomes import Outcomes
from gateway.batches.provider import Provider
from gateway.batches.records import BatchRow
from gateway.batches.result_files import finish_batch
from gateway.batches.statistics import BatchStatistics, RouteQueue
from gateway.core import Core
from gateway.disk.disk_space import DiskSpace
from gateway.limits.reserving import has_budget
from gateway.runtime import Runtime
from policies.batches.settings import BatchPolicy

_logger = logging.getLogger(__name__)
_TICK_S = 0.25
_IDLE_TICK_S = 1.0
_COLLECT_EVERY_S = 1.0
_LOOK_EVERY_S = 5.0
_SWEEP_EVERY_S = 600.0
_NOBODY = ""
"""The route of lines whose model no route takes any more: they are answered with that error."""


class BatchDriver:
    """A loop that reads the state of all batches, starts what is due and not running yet, and sleeps."""

    def __init__(
        self,
        core: Core,
        lock: Path,
        *,
        store: BatchStore,
        files: FileStore,
        jobs: JobStore,
        room: DiskSpace,
        calls: LineCalls,
        provider: Provider,
        outcomes: Outcomes,
    ) -> None:
        self._core = core
        self._lock = _Lock(lock)
        self._store = store
        self._files = files
        self._jobs = jobs
        self._room = room
        self._calls = calls
        self._provider = provider
        self._outcomes = outcomes
        self._wake = asyncio.Event()
        self._work = KeyedWork(core.clock)
        self._routed_by: Runtime | None = None
        self._routes: dict[int, set[str]] = {}
        self._unfinished: Sequence[BatchRow] = ()
        self._due: dict[str, float] = {}
        self._is_full = False
        self._problem = ""
        self.statistics = BatchStatistics()

    def wake(self) -> None:
        """End the sleep of the loop: there is something to do."""
        self._wake.set()

    async def run(self) -> None:
        """Drive the batches, or wait for the lock, until cancelled."""
        try:
            while True:
                self._wake.clear()
                try:
                    if self._lock.take():
                        await self._pass()
                    else:
                        # There is some only where it was held, and another process drives now.
                        await self._work.aclose()
                    self._problem = ""
                except (SlipstreamError, OSError) as error:
                    self._warn_once(str(error))
                    await asyncio.sleep(_IDLE_TICK_S)
                except Exception:
                    _logger.exception("batches are not driven")
                    await asyncio.sleep(_IDLE_TICK_S)
                try:
                    await asyncio.wait_for(self._wake.wait(), _TICK_S if self._unfinished else _IDLE_TICK_S)
                except TimeoutError:
                    continue
        finally:
            await self._work.aclose()
            self._lock.release()

    def _warn_once(self, problem: str) -> None:
        """Log a problem when it is new, instead of once a second."""
        if problem != self._problem:
            self._problem = problem
            _logger.warning("batches are not driven: %s", problem)

    async def _pass(self) -> None:
        self._count("expired", await self._store.expire())
        self._unfinished = await self._store.unfinished()
        runtime = self._core.runtime
        running = [batch for batch in self._unfinished if batch.status == "in_progress"]
        await self._find_routes(running, runtime)
        for batch in self._unfinished:
            self._advance(batch)
        self._is_full = bool(running) and not await self._room.ensure()
        if not self._is_full:
            # What a provider's batch costs is known a day later, which is too late for a budget.
            callers = [(batch.seq, caller_of(batch, runtime)) for batch in running]
            budgeted = [seq for seq, caller in callers if caller is not None and has_budget(runtime, caller)]
            self._start_workers(running, runtime, budgeted)
            if self._is_due("collect", _COLLECT_EVERY_S):
                await self._provider.collect(budgeted)
        now = self._core.clock.wall()
        for job in await self._jobs.unsettled():
            if job.next_at <= now and not (self._is_full and job.state == "new"):
                self._work.start(("a provider's part", job.seq), partial(self._provider.step, job), self.wake)
        if self._is_due("look", _LOOK_EVERY_S):
            await self._update_statistics()
        if self._is_due("sweep", _SWEEP_EVERY_S):
            self._work.start(("tidying up",), self._sweep)

    def _advance(self, batch: BatchRow) -> None:
        key = ("the course", batch.seq)
        match batch.status:
            case "validating":
                path = self._files.input_path(batch.id)
                self._work.start(key, lambda: check_batch(batch, path, self._core, self._store), self.wake)
            case "in_progress" if batch.completed + batch.failed >= batch.total:
                self._work.start(key, lambda: self._store.finalize(batch), self.wake)
            case "finalizing":
                self._calls.cancel(batch.seq)
                self._work.start(key, lambda: self._finish(batch))
            case "cancelling":
                self._calls.cancel(batch.seq)
                self._work.start(key, lambda: self._end_cancelled(batch))

    async def _end_cancelled(self, batch: BatchRow) -> None:
        self._count("cancelled", await self._store.drop(batch))
        await self._finish(batch)

    async def _finish(self, batch: BatchRow) -> None:
        self._outcomes.tally.batches[await finish_batch(batch, self._store, self._files)] += 1

    def _start_workers(self, running: Sequence[BatchRow], runtime: Runtime, budgeted: Collection[int]) -> None:
        """Start the workers of routes that answer lines as calls: those of `budgeted` batches everywhere.

        A worker without a line ends at once.
        """
        candidates: dict[str, list[BatchRow]] = {}
        policies: dict[str, BatchPolicy] = {}
        for batch in running:
            for name in self._routes.get(batch.seq, ()):
                if name not in policies:
                    stack = runtime.stacks.get(name)
                    policies[name] = stack.policy.batch if stack is not None else BatchPolicy()
                if policies[name].mode == "calls" or batch.seq in budgeted:
                    candidates.setdefault(name, []).append(batch)
        self._calls.candidates = candidates
        for name in candidates:
            if not self._calls.is_paused(name):
                for worker in range(policies[name].at_once):
                    self._work.start(("answering", name, worker), partial(self._calls.run, name))

    async def _find_routes(self, running: Sequence[BatchRow], runtime: Runtime) -> None:
        """Assign the lines of each batch to routes: once for each batch, and again when the policy has changed."""
        if runtime is not self._routed_by:
            self._routes.clear()
            self._routed_by = runtime
        for batch in running:
            if batch.seq not in self._routes:
                names = set()
                for model, route in await self._store.routes_waited_for(batch):
                    stack = stack_for_line(batch, model, runtime)
                    name = stack.policy.name if stack is not None else _NOBODY
                    if name != route:
                        await self._store.move(batch, model, name)
                    names |= {name, route}
                self._routes[batch.seq] = names
        for gone in self._routes.keys() - {batch.seq for batch in running}:
            del self._routes[gone]

    def _count(self, how: str, ended: Mapping[str, int]) -> None:
        for route, number in ended.items():
            self._outcomes.tally.lines[route, how] += number

    async def _update_statistics(self) -> None:
        now = self._core.clock.wall()
        waiting = await self._store.waiting()
        self.statistics = BatchStatistics(
            batches=Counter(batch.status for batch in self._unfinished),
            routes={route: RouteQueue(number, max(0.0, now - since)) for route, number, since in waiting},
            jobs=Counter(job.route for job in await self._jobs.unsettled()),
            stored_bytes=self.statistics.stored_bytes,
            is_full=self._is_full,
        )

    async def _sweep(self) -> None:
        await self._store.forget_old()
        stored = await self._files.sweep()
        self.statistics = msgspec.structs.replace(self.statistics, stored_bytes=stored)

    def _is_due(self, what: str, every_s: float) -> bool:
        now = self._core.clock.now()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every_s
        return True


class _Lock:
    """A lock on a file, held until it is released or this process dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Try to take the lock; whether this process holds it now. Raises: OSError.

        Where somebody has taken the file away it is taken anew, for others make another one, and hold that.
        """
        if self._descriptor is not None and self._is_there(self._descriptor):
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            self.release()
            return False
        self.release()
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except FileNotFoundError:
            return False

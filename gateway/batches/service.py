"""Everything of /v1/files and /v1/batches that lives as long as the process: the database, the files, who drives."""

from __future__ import annotations

from pathlib import Path

from backends.errors import ConfigurationError
from gateway.batches.batch_store import BatchStore
from gateway.batches.calls import LineCalls
from gateway.batches.driver import BatchDriver
from gateway.batches.file_store import FileStore
from gateway.batches.job_store import JobStore
from gateway.batches.outcomes import Outcomes
from gateway.batches.provider import Provider
from gateway.batches.records import TABLES
from gateway.batches.statistics import BatchStatistics, Tally
from gateway.core import Core
from gateway.disk.disk_space import DiskSpace
from gateway.disk.sqlite_file import SqliteFile
from policies.batches.settings import BatchesStore


class Batches:
    """Opened before the first request; `run` goes on beside them."""

    def __init__(self, core: Core, limits: BatchesStore) -> None:
        folder = Path(limits.folder)
        clock = core.clock
        self.limits = limits
        # Files that an empty database does not know would be tidied away.
        self._database = SqliteFile(folder / "batches.sqlite3", TABLES, is_waited_for=True)
        self.files = FileStore(self._database, limits, clock)
        self.store = BatchStore(self._database, self.files, clock, max_batches=limits.max_batches, keep_s=limits.keep)
        jobs = JobStore(self._database, clock)
        self._outcomes = Outcomes(core, self.store)
        room = DiskSpace(folder, clock)
        calls = LineCalls(core, self.store, self.files, room=room, outcomes=self._outcomes)
        provider = Provider(core, self.files, jobs, outcomes=self._outcomes)
        self._driver = BatchDriver(
            core,
            folder / "driver.lock",
            store=self.store,
            files=self.files,
            jobs=jobs,
            room=room,
            calls=calls,
            provider=provider,
            outcomes=self._outcomes,
        )

    async def open(self) -> None:
        """Raises: ConfigurationError."""
        await self._database.open()
        try:
            await self.files.open()
        except OSError as error:
            raise ConfigurationError(f"stores.batches.folder cannot be used: {error}") from error

    async def run(self) -> None:
        """Drive batches until cancelled."""
        await self._driver.run()

    def wake(self) -> None:
        """A batch was made or cancelled."""
        self._driver.wake()

    async def aclose(self) -> None:
        """Close the database. Safe to call twice."""
        await self._database.aclose()

    def statistics(self) -> BatchStatistics:
        """What there is to do; empty where another process drives."""
        return self._driver.statistics

    def take_tally(self) -> Tally:
        """What was done since the last time."""
        return self._outcomes.take_tally()

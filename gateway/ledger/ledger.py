"""The ledger of one process. Who notes a row is back in microseconds, whatever becomes of journal, disk and store."""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from pathlib import Path

import msgspec

from backends.clock import Clock
from backends.errors import ConfigurationError, StoreUnavailable
from gateway.ledger.days import Days
from gateway.ledger.journal import Journal
from gateway.ledger.row import Beginning, Row
from gateway.ledger.samples import GaugeSample
from gateway.ledger.segment import RecordKind
from gateway.ledger.store import LedgerStore
from gateway.ledger.writer import BATCH, Writer
from policies.failures import Failures

_logger = logging.getLogger(__name__)
_LOOK_EVERY_S = 0.01
_BEGINNING, _CALL, _PART = RecordKind
"""A class of an enumeration takes ten times as long to find them."""


class LedgerStatistics(msgspec.Struct, frozen=True):
    """Totals since the start, and what waits now. `dropped`: rows that nobody will ever see, by reason."""

    rows: int
    dropped: dict[str, int]
    killed: int
    waiting: int
    lag_s: float


class Ledger:
    """Open between `open` and `aclose`; numbers and notes are taken on the event loop alone."""

    def __init__(
        self,
        store: LedgerStore,
        folder: Path,
        *,
        max_segments: int,
        days: Days,
        keep_s: float,
        outlives_power: bool,
        clock: Clock,
    ) -> None:
        self._store = store
        self._folder = folder
        self._max_segments = max_segments
        self._days = days
        self._keep_s = keep_s
        self._outlives_power = outlives_power
        self._clock = clock
        self._encode = msgspec.msgpack.Encoder().encode
        self._numbers = count(1)
        self._journal: Journal | None = None
        self._writer: Writer | None = None
        self._num_noted = 0
        self._num_dropped = 0
        self._num_refused = 0
        self.failures = Failures("ledger", clock)
        """Of what goes on behind the calls."""

    async def open(self) -> None:
        """Make the journal, and the store's tables where it is there: a store that is away is waited for.

        Raises: ConfigurationError.
        """
        try:
            place = self._store.place(self._folder)
            self._journal = await asyncio.to_thread(Journal, self._folder, self._max_segments, place)
        except OSError as error:
            raise ConfigurationError(f"the ledger's journal {self._folder} cannot be used: {error.strerror}") from error
        is_open = False
        try:
            await asyncio.to_thread(self._store.open)
            is_open = True
        except StoreUnavailable as error:
            _logger.error("%s; its rows wait in the journal", error.message)
        except BaseException:
            self._journal.close(is_stored=True)
            self._journal = None
            raise
        self._writer = Writer(
            self._store,
            self._journal,
            self._folder,
            days=self._days,
            keep_s=self._keep_s,
            outlives_power=self._outlives_power,
            failures=self.failures,
            clock=self._clock,
        )
        self._writer.start(is_open=is_open)

    async def aclose(self) -> None:
        """Store what is left; what cannot be stored now stays in the journal. Safe to call twice."""
        journal, writer = self._journal, self._writer
        self._journal = self._writer = None
        if journal is not None and writer is not None:
            journal.close(is_stored=await asyncio.to_thread(writer.stop))

    async def wait_adopted(self, limit_s: float) -> bool:
        """Whether the store has, within that time, what those workers have left that were gone at the start. One
        that is away is not waited for.
        """
        end_s = self._clock.now() + limit_s
        while self._writer is not None and not self._writer.has_adopted.is_set():
            if self._clock.now() >= end_s or self._writer.done.waiting_since_s is not None:
                return False
            await self._clock.sleep(_LOOK_EVERY_S)
        return self._writer is not None

    def number(self) -> int:
        """The next call's."""
        return next(self._numbers)

    def begin(self, beginning: Beginning) -> None:
        """A call begins: what its row will say if the worker is killed before it is noted."""
        self._append(beginning, _BEGINNING, None)

    def note(self, row: Row) -> bool:
        """A charge is known: whether the journal has it. Neither waits nor raises; what finds no room is counted. The
        row is not changed any more.
        """
        return self._append(row, _PART if row.part else _CALL, row)

    def sample(self, samples: list[GaugeSample]) -> None:
        """How things stand this minute; lost where the store is away for long."""
        if self._writer is not None and samples:
            self._writer.samples.append(samples)

    def statistics(self) -> LedgerStatistics:
        """A snapshot."""
        if self._writer is None:
            return LedgerStatistics(0, {}, 0, 0, 0.0)
        done = self._writer.done
        since_s = done.waiting_since_s
        lag_s = 0.0 if since_s is None else self._clock.now() - since_s
        dropped = {
            "journal_full": self._num_dropped,
            "refused": self._num_refused + done.refused,
            "damaged": self._writer.reading.num_damaged + done.damaged,
        }
        return LedgerStatistics(done.rows, dropped, done.killed, self._num_noted - done.read + done.waiting, lag_s)

    def _append(self, told: Beginning | Row, kind: RecordKind, row: Row | None) -> bool:
        journal = self._journal
        try:
            payload = self._encode(told)
        except (ValueError, OverflowError):
            # A text that is no Unicode, a number beyond 64 bits.
            self._num_refused += 1
            return False
        if journal is None or not journal.append(payload, kind, told.n, row):
            self._num_dropped += kind is not _BEGINNING
            return False
        self._num_noted += 1
        writer = self._writer
        if writer is not None and (writer.is_resting or not self._num_noted % BATCH):
            writer.wake()
        return True

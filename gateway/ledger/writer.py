"""Brings rows from the journals to the store: those of this worker, and those of workers that are gone.

One thread. 300 rows, or what there is after a tenth of a second, go in one transaction; a segment of the journal is
deleted once all of it is stored. Whatever was stored twice, for the thread was killed in between, is in the store once.
Where nothing is noted it rests until something is, or something else is due.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from backends.clock import Clock
from backends.errors import StoreUnavailable
from gateway.disk.settled_wall import SettledWallClock
from gateway.ledger.days import Days
from gateway.ledger.journal import Journal
from gateway.ledger.reading import Adoption, Reading, adopt
from gateway.ledger.row import AT, Stored, Values, stored
from gateway.ledger.samples import GaugeSample
from gateway.ledger.store import LedgerStore
from policies.failures import Failures

BATCH = 300
_MOST_AT_ONCE = 1000
_WAIT_S = 0.1
_ADOPT_EVERY_S = 5.0
_ROLL_UP_EVERY_S = 10.0
_PRUNE_EVERY_S = 600.0
_MINUTE_US = 60 * 10**6
_MAX_PAUSE_S = 5.0
_MAX_CLOSE_S = 3.0
_ROLLED_UP_AT_ONCE = 5000
_COUNT_EVERY_S = 60.0
_COUNTED_AT_ONCE = 20_000
"""The more at once, the more of them fall into one count, and it is the counts that cost."""

_MOST_SAMPLES = 60

_logger = logging.getLogger(__name__)


class Written(msgspec.Struct):
    """What the writer has done since the start, and how it stands; its thread counts, others read."""

    rows: int = 0
    refused: int = 0
    """Rows that the store does not take."""
    killed: int = 0
    """Calls that had begun and were not over when their worker was gone."""
    damaged: int = 0
    """Parts that are lost of what workers have left that are gone."""
    read: int = 0
    """Records of this worker's own journal."""
    waiting: int = 0
    """Rows that were read and are not stored."""
    waiting_since_s: float | None = None
    """Since when the first of these has waited in vain, in monotonic seconds."""


class Writer:
    """Runs from `start` to `stop`."""

    def __init__(
        self,
        store: LedgerStore,
        journal: Journal,
        folder: Path,
        *,
        days: Days,
        keep_s: float,
        outlives_power: bool,
        failures: Failures,
        clock: Clock,
    ) -> None:
        self.done = Written()
        self.has_adopted = threading.Event()
        """Set once the store has what those workers have left that were gone at the start."""
        self.reading = Reading()
        self._failures = failures
        self._store = store
        self._journal = journal
        self._folder = folder
        self._days = days
        self._keep_us = int(keep_s * 1e6)
        self._outlives_power = outlives_power
        self._clock = clock
        self._settled_wall = SettledWallClock(clock)
        self._adoption: Adoption | None = None
        self._left: set[Path] = set()
        """Locks of journals that are another version's, or of another ledger."""
        self._adopts = False
        """Whether this turn is for what workers have left that are gone."""
        self._waiting: list[Stored] = []
        self.samples: deque[list[GaugeSample]] = deque(maxlen=_MOST_SAMPLES)
        """Those of minutes that are not stored; of more, the oldest are gone."""
        self._are_killed = False
        """Whether those that wait are the last of what a worker has left that is gone."""
        # A clock that is set only after the start must not take away rows that are not old.
        self._due = {"adopt": 0.0, "roll_up": 0.0, "count": 0.0, "prune": clock.now() + _PRUNE_EVERY_S}
        """When what is done now and then is done again, in monotonic seconds."""
        self._has_new = True
        """Whether there may be rows that are not in the sums."""
        self._has_uncounted = True
        """Whether there may be rows whose times are not counted."""
        self._is_open = False
        self._is_away = False
        self._is_stopping = False
        self.is_resting = False
        """Whether it is to be told of the next record."""
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self, *, is_open: bool) -> None:
        """Begin; the store may be open already."""
        self._is_open = is_open
        self._thread.start()

    def wake(self) -> None:
        """There is enough for a transaction, or something at all where it rests."""
        self.is_resting = False
        self._wake.set()

    def stop(self) -> bool:
        """Store what is left, as far as that takes no longer than a moment: whether it is all stored."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join(_MAX_CLOSE_S)
        is_stored = not self._thread.is_alive() and not self._waiting and not self.reading.begun
        return is_stored and all(segment.read_at >= segment.end for segment in self._journal.segments)

    def _run(self) -> None:
        pause_s = _WAIT_S
        while True:
            has_more = False
            try:
                self._provide()
                has_more = self._turn()
                self._came_back()
                pause_s = _WAIT_S
            except StoreUnavailable as error:
                self._went_away(error)
                self._keep_waiting()
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            except Exception as error:  # the border of background work: later turns are needed
                self._failures.note(error)
                self._keep_waiting()
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            if self._is_stopping and not has_more:
                break
            if not has_more:
                self._rest()
                self._wake.wait(pause_s)
                self._wake.clear()
        if self._adoption is not None:
            self._adoption.close()
        self._store.close()

    def _rest(self) -> None:
        """Wait as long as there is nothing to do."""
        # Looked at again once it will be told: what comes before that it would never hear of.
        self.is_resting = self._has_nothing()
        if self.is_resting and self._has_nothing():
            needed = {"adopt": True, "prune": True, "roll_up": self._has_new, "count": self._has_uncounted}
            due = min(self._due[what] for what, is_needed in needed.items() if is_needed)
            self._wake.wait(max(0.0, due - self._clock.now()))
            self._wake.clear()
        self.is_resting = False

    def _has_nothing(self) -> bool:
        newest = self._journal.segments[-1]
        is_read = newest.read_at >= newest.end and not self._waiting and self._adoption is None
        return is_read and self._is_open and not self._is_stopping

    def _provide(self) -> None:
        try:
            self._journal.provide()
            if self._outlives_power:
                self._journal.flush()
        except OSError as error:
            # Rows are dropped and counted once the segment in use is full.
            self._failures.note(error)

    def _turn(self) -> bool:
        """One transaction at most of each kind: whether there is more to do at once."""
        self._take_next()
        if not self._is_open:
            self._store.open()
            self._is_open = True
        has_more = self._store_next()
        while self.samples:
            self._store.keep_samples(self.samples[0])
            self.samples.popleft()
        if self._has_new and (self._store.has_enough or self._is_due("roll_up", _ROLL_UP_EVERY_S)):
            has_more |= self._roll_up()
        if self._has_uncounted and (self._store.has_many_counts or self._is_due("count", _COUNT_EVERY_S)):
            has_more |= self._count_latencies()
        if not self._is_stopping:
            has_more |= self._is_due("prune", _PRUNE_EVERY_S) and self._prune()
        return has_more

    def _take_next(self) -> None:
        if self._waiting:
            return
        # Turn about: while calls come, there are always new rows.
        self._adopts = not self._adopts and not self._is_stopping
        if self._adopts:
            self._take_adopted()
        if not self._waiting:
            self._take(self._journal.worker, self.reading.take(list(self._journal.segments), _MOST_AT_ONCE))
            self.done.read = self.reading.num_read

    def _store_next(self) -> bool:
        has_more = len(self._waiting) >= BATCH
        if self._waiting:
            num_new, num_refused = self._store.insert(self._waiting)
            self.done.rows += num_new
            self._has_new = self._has_uncounted = True
            self.done.refused += num_refused
            if num_refused:
                _logger.error("the ledger does not take %d rows, which are lost", num_refused)
            if self._are_killed:
                self._end_adoption()
                self.done.killed += num_new
                self._are_killed = False
            self._waiting = []
            self.done.waiting = 0
        self._journal.clear()
        try:
            self._journal.carry(self.reading.begun)
        except OSError as error:
            # No room to write them down anew is no reason to keep anything from a store that has some.
            self._failures.note(error)
        return has_more or self._adoption is not None

    def _take(self, worker: int, rows: Sequence[Values]) -> None:
        try:
            days = self._days.each_of([values[AT] for values in rows]) if rows else []
        except ValueError:
            for values in rows:
                self._take_one(worker, values)
        else:
            self._waiting += [stored(values, worker, day) for values, day in zip(rows, days, strict=True)]
        self.done.waiting = len(self._waiting)

    def _take_one(self, worker: int, values: Values) -> None:
        try:
            self._waiting.append(stored(values, worker, self._days.of(values[AT])))
        except ValueError as error:
            self.done.refused += 1
            self._failures.note(error)

    def _take_adopted(self) -> None:
        if self._adoption is None and self._is_due("adopt", _ADOPT_EVERY_S):
            self._adoption = adopt(self._folder, self._journal, self._left)
            if self._adoption is None:
                self.has_adopted.set()
            else:
                _logger.warning("the ledger takes over what a worker has left that is gone")
        if self._adoption is None:
            return
        rows, are_killed = self._adoption.take(_MOST_AT_ONCE)
        if not rows:
            self._end_adoption()
            return
        self._take(self._adoption.worker, rows)
        self._are_killed = are_killed and bool(self._waiting)

    def _end_adoption(self) -> None:
        """The store has all that the worker has left."""
        done, self._adoption = self._adoption, None
        if done is not None:
            self.done.damaged += done.num_damaged
            done.done()
        # There may be another one.
        self._due["adopt"] = 0.0

    def _roll_up(self) -> bool:
        has_more = self._store.roll_up(_ROLLED_UP_AT_ONCE) == _ROLLED_UP_AT_ONCE
        self._has_new = has_more
        if has_more:
            self._due["roll_up"] = 0.0
        return has_more

    def _count_latencies(self) -> bool:
        has_more = self._store.count_latencies(_COUNTED_AT_ONCE) == _COUNTED_AT_ONCE
        self._has_uncounted = has_more
        if has_more:
            self._due["count"] = 0.0
        return has_more

    def _prune(self) -> bool:
        now_us = int(self._settled_wall() * 1e6)
        self._store.forget_old_samples(now_us // _MINUTE_US)
        before_us = now_us - self._keep_us
        has_more = self._store.prune(before_us, self._days.of(before_us))
        if has_more:
            self._due["prune"] = 0.0
        return has_more

    def _is_due(self, what: str, every_s: float) -> bool:
        now = self._clock.now()
        if now < self._due[what]:
            return False
        self._due[what] = now + every_s
        return True

    def _went_away(self, error: StoreUnavailable) -> None:
        if not self._is_away:
            self._is_away = True
            _logger.error("%s; its rows wait in the journal", error.message)
        # What comes back may be another one, without tables.
        self._is_open = False

    def _keep_waiting(self) -> None:
        if not self._waiting:
            self.done.waiting_since_s = None
        elif self.done.waiting_since_s is None:
            self.done.waiting_since_s = self._clock.now()

    def _came_back(self) -> None:
        self.done.waiting_since_s = None
        if self._is_away:
            self._is_away = False
            _logger.info("the ledger answers again")

"""Reads a journal: rows to store, in order, and which beginnings have no end yet.

Where a call has begun and its worker is gone, the beginning is the row: it says `worker_killed`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from gateway.ledger.journal import LOCKS, SEGMENTS, Journal, hold_dead
from gateway.ledger.row import FIELDS, Row, Values, killed, values_of
from gateway.ledger.segment import RecordKind, Segment, is_of_another_version, is_unwritten, open_segment

_logger = logging.getLogger(__name__)
_BEGINNING = int(RecordKind.BEGINNING)
_CALL = int(RecordKind.CALL)
_NUM_FIELDS = len(FIELDS)


class Reading:
    """How far a journal was read. `begun`: the calls that are not over, by number: where and how they began."""

    def __init__(self) -> None:
        self._decode = msgspec.msgpack.Decoder(tuple[Any, ...]).decode
        self.begun: dict[int, tuple[Segment, bytes]] = {}
        self.num_damaged = 0
        self.num_read = 0

    def take(self, segments: list[Segment], most: int) -> list[Values]:
        """The values of the next rows, at most so many."""
        rows: list[Values] = []
        begun = self.begun
        for segment in segments:
            if len(rows) >= most:
                break
            num_read = 0
            try:
                for _, payload, kind, n, row in segment.read():
                    num_read += 1
                    if kind == _BEGINNING:
                        if n in begun:
                            self._leave(n)
                        begun[n] = (segment, payload)
                        segment.num_open += 1
                        continue
                    rows.append(values_of(row) if row is not None else self._decoded(payload))
                    if kind == _CALL:
                        self._leave(n)
                    if len(rows) >= most:
                        break
            except (ValueError, msgspec.DecodeError) as error:
                # Where its length is wrong, nobody knows where the next one begins.
                self.num_damaged += 1
                _logger.error("a part of the ledger's journal is lost: %s", error)
            self.num_read += num_read
        return rows

    def left(self) -> list[Values]:
        """The rows of calls that are not over and never will be."""
        rows = [killed(payload) for _, payload in self.begun.values()]
        self.begun.clear()
        return rows

    def _decoded(self, payload: bytes) -> Values:
        values: Values = self._decode(payload)
        # Another version may have written it, with other fields at its end.
        return values if len(values) == _NUM_FIELDS else values_of(msgspec.msgpack.decode(payload, type=Row))

    def _leave(self, n: int) -> None:
        if (begun := self.begun.pop(n, None)) is not None:
            begun[0].num_open -= 1


class Adoption:
    """The journal of a worker that is gone, held by its lock until `done` or `close`."""

    def __init__(self, lock: Path, handle: int) -> None:
        self._lock = lock
        self._handle = handle
        self._reading = Reading()
        self._segments: list[Segment] = []
        self._alien: list[Path] = []
        """What are no segments, or none yet."""
        self.worker = int(lock.stem, 16)
        for path in sorted(lock.parent.glob(f"{lock.stem}-*{SEGMENTS}")):
            if is_unwritten(path):
                self._alien.append(path)
                continue
            try:
                segment, _ = open_segment(path)
            except ValueError as error:
                _logger.error("a part of the ledger's journal is lost: %s", error)
                self._reading.num_damaged += 1
                self._alien.append(path)
            else:
                self._segments.append(segment)

    def take(self, most: int) -> tuple[list[Values], bool]:
        """The values of the next rows, at most so many; in the end, and then it is true, those of calls that were never
        over; then none.
        """
        rows = self._reading.take(self._segments, most)
        return (rows, False) if rows else (self._reading.left(), True)

    @property
    def num_damaged(self) -> int:
        """How many parts of it are lost."""
        return self._reading.num_damaged

    def done(self) -> None:
        """The store has all of it: delete it. Raises: OSError."""
        for segment in self._segments:
            segment.delete()
        for path in self._alien:
            path.unlink(missing_ok=True)
        self._lock.unlink(missing_ok=True)
        os.close(self._handle)

    def close(self) -> None:
        """Let go of it; another worker adopts it."""
        for segment in self._segments:
            segment.close()
        os.close(self._handle)


def adopt(folder: Path, own: Journal, left: set[Path]) -> Adoption | None:
    """The journal of a worker that is gone, if there is one. What another version has written, and what is for another
    ledger, is left to these, and told of once: `left` has the locks of such. Raises: OSError.
    """
    for lock in sorted(folder.glob(f"*{LOCKS}")):
        if lock == own.path.with_suffix(LOCKS) or lock in left or (handle := hold_dead(lock)) is None:
            continue
        try:
            left_to = _whose(lock, own)
            if left_to is None:
                return Adoption(lock, handle)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        left.add(lock)
        _logger.error(
            "a worker that is gone has left %s, which is kept for %s", lock.with_name(f"{lock.stem}*"), left_to
        )
    return None


def _whose(lock: Path, own: Journal) -> str | None:
    """To whom that journal is left; None if it is for whoever has this one. Raises: OSError."""
    ledger = lock.read_bytes()
    # Versions before this one said nothing.
    if ledger not in (b"", own.ledger):
        return f"a gateway with another ledger, {os.fsdecode(ledger)}"
    if any(map(is_of_another_version, lock.parent.glob(f"{lock.stem}-*{SEGMENTS}"))):
        return "a gateway of the version that has written it"
    return None

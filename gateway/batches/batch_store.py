"""Batches and their lines, in the database. A line is answered once: whatever comes for it later finds it done."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection

from backends.clock import Clock
from backends.errors import InvalidRequest, QuotaExceeded, UnknownObject
from gateway.batches.file_store import FileStore
from gateway.batches.records import (
    UNFINISHED,
    BatchRow,
    BatchStatus,
    LineOwner,
    LineResult,
    LineRow,
    LineState,
    NewLine,
    Tenant,
    column_list,
)
from gateway.disk.settled_wall import SettledWallClock
from gateway.disk.sqlite_file import SqliteFile
from policies.prices.price import PICO_PER_DOLLAR

_COLUMNS = column_list(BatchRow)
LINE_COLUMNS = column_list(LineRow)
_OPEN = f"state IN ({LineState.WAITING:d}, {LineState.SENT:d})"
LEFT = f"state IN ({LineState.EXPIRED:d}, {LineState.DROPPED:d})"
"""Nobody waits for these lines any more; a provider may still have them."""
STATUSES = ", ".join(f"'{status}'" for status in UNFINISHED)
"""Of batches that are not done."""


class BatchStore:
    """All batches, whoever's they are; what callers ask for is asked with their tenant."""

    def __init__(
        self, database: SqliteFile, files: FileStore, clock: Clock, *, max_batches: int, keep_s: float
    ) -> None:
        self._database = database
        self._files = files
        self._clock = clock
        self._settled_wall = SettledWallClock(clock)
        self._max_batches = max_batches
        self._keep_s = keep_s

    async def create(
        self,
        tenant: Tenant,
        *,
        key: str,
        endpoint: str,
        input_file_id: str,
        window: tuple[str, float],
        metadata: str,
        output_keep_s: int | None,
    ) -> BatchRow:
        """A new batch of one of the tenant's files. Raises: UnknownObject, InvalidRequest, QuotaExceeded."""
        batch_id = f"batch_{secrets.token_hex(12)}"
        now = int(self._clock.wall())

        def change(connection: Connection) -> BatchRow:
            file = self._files.find(connection, tenant, input_file_id)
            if file.purpose != "batch":
                raise InvalidRequest(f'the file {file.id} has another purpose than "batch"', param="input_file_id")
            (count,) = connection.execute(
                f"SELECT COUNT(*) FROM batches WHERE tenant = ? AND status IN ({STATUSES})", (tenant,)
            ).fetchone()
            if count >= self._max_batches:
                raise QuotaExceeded(f"{count} batches are not done, as many as there may be; wait, or cancel some")
            _link(self._files.path(file.id), self._files.input_path(batch_id))
            connection.execute(
                "INSERT INTO batches (id, tenant, key, endpoint, input_file_id, completion_window, metadata, "
                "output_keep_s, status, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'validating', ?, ?)",
                (
                    batch_id,
                    tenant,
                    key,
                    endpoint,
                    file.id,
                    window[0],
                    metadata,
                    output_keep_s,
                    now,
                    now + int(window[1]),
                ),
            )
            return self._find(connection, tenant, batch_id)

        return await self._database.write(change)

    async def get(self, tenant: Tenant, id: str) -> BatchRow:
        """One batch of the tenant. Raises: UnknownObject."""
        return await self._database.read(lambda connection: self._find(connection, tenant, id))

    async def listing(self, tenant: Tenant, *, limit: int, after: str | None) -> tuple[Sequence[BatchRow], bool]:
        """The tenant's batches, newest first, and whether there are more. Raises: UnknownObject."""

        def ask(connection: Connection) -> list[BatchRow]:
            start = self._find(connection, tenant, after).seq if after is not None else None
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM batches WHERE tenant = ? AND (? IS NULL OR seq < ?) ORDER BY seq DESC LIMIT ?",
                (tenant, start, start, limit + 1),
            )
            return [BatchRow(*row) for row in rows]

        found = await self._database.read(ask)
        return found[:limit], len(found) > limit

    async def cancel(self, tenant: Tenant, id: str) -> BatchRow:
        """Ask for its end. Raises: UnknownObject, InvalidRequest where it has ended already."""

        def change(connection: Connection) -> BatchRow:
            batch = self._find(connection, tenant, id)
            if batch.status not in UNFINISHED:
                raise InvalidRequest(f"the batch cannot be cancelled any more: it is {batch.status}")
            if batch.status in ("validating", "in_progress"):
                self._set_status(connection, batch.seq, "cancelling", "cancelling_at")
            return self._find(connection, tenant, id)

        return await self._database.write(change)

    async def unfinished(self) -> Sequence[BatchRow]:
        """Every batch that is not done, oldest first."""

        def ask(connection: Connection) -> list[BatchRow]:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM batches WHERE status IN ({STATUSES}) ORDER BY seq")
            return [BatchRow(*row) for row in rows]

        return await self._database.read(ask)

    async def reset_lines(self, batch: BatchRow) -> None:
        """Forget the lines of a batch that is looked through from its beginning."""
        statement = (
            "DELETE FROM lines WHERE batch = ? AND (SELECT status FROM batches WHERE seq = lines.batch) = 'validating'"
        )
        await self._database.write(lambda connection: connection.execute(statement, (batch.seq,)))

    async def add_lines(self, batch: BatchRow, lines: Iterable[NewLine]) -> bool:
        """Some lines of a batch that is being validated; False where it is not any more."""
        now = self._clock.wall()
        rows = [(batch.seq, line.custom_id, line.offset, line.num_bytes, line.model, line.route, now) for line in lines]

        def change(connection: Connection) -> bool:
            (status,) = connection.execute("SELECT status FROM batches WHERE seq = ?", (batch.seq,)).fetchone()
            if status != "validating":
                return False
            connection.executemany(
                "INSERT INTO lines (batch, custom_id, offset, num_bytes, model, route, since) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            return True

        return await self._database.write(change)

    async def begin(self, batch: BatchRow, total: int, model: str | None) -> None:
        """It is valid: its lines are to be answered."""

        def change(connection: Connection) -> None:
            if self._set_status(connection, batch.seq, "in_progress", "in_progress_at", was=("validating",)):
                connection.execute("UPDATE batches SET total = ?, model = ? WHERE seq = ?", (total, model, batch.seq))

        await self._database.write(change)

    async def fail(self, batch: BatchRow, errors: Sequence[object]) -> None:
        """It is not valid: nothing of it is answered."""

        def change(connection: Connection) -> None:
            if self._set_status(connection, batch.seq, "failed", "failed_at", was=("validating",)):
                connection.execute("UPDATE batches SET errors = ? WHERE seq = ?", (json.dumps(errors), batch.seq))
                _delete_lines(connection, batch.seq)

        await self._database.write(change)

    async def next_line(self, batch: BatchRow, route: str, busy: Sequence[int]) -> LineRow | None:
        """The first line of a batch that waits for this route and is not busy."""
        statement = (
            f"SELECT {LINE_COLUMNS} FROM lines WHERE batch = ? AND state = {LineState.WAITING:d} AND route = ? "
            f"AND due <= ? AND id NOT IN ({', '.join(map(str, busy))}) ORDER BY id LIMIT 1"
        )
        values = (batch.seq, route, self._clock.wall())
        row = await self._database.read(lambda connection: connection.execute(statement, values).fetchone())
        return LineRow(*row) if row is not None else None

    async def routes_waited_for(self, batch: BatchRow) -> Sequence[tuple[str, str]]:
        """Models and routes of the lines of a batch that are not done, each pair once."""
        statement = f"SELECT DISTINCT model, route FROM lines WHERE batch = ? AND {_OPEN}"
        return await self._database.read(lambda connection: connection.execute(statement, (batch.seq,)).fetchall())

    async def move(self, batch: BatchRow, model: str, route: str) -> None:
        """Lines of a model that wait are another route's from now on."""
        statement = f"UPDATE lines SET route = ? WHERE batch = ? AND state = {LineState.WAITING:d} AND model = ?"
        await self._database.write(lambda connection: connection.execute(statement, (route, batch.seq, model)))

    async def answer(self, results: Sequence[LineResult], job: int | None = None) -> Sequence[LineResult]:
        """What lines came to. Returns those that were not done, and of that job: the others change nothing."""

        def change(connection: Connection) -> list[LineResult]:
            return [result for result in results if _answer(connection, result, job)]

        return await self._database.write(change)

    async def owners(self, lines: Iterable[int]) -> Mapping[int, LineOwner]:
        """Whose these lines are."""
        statement = (
            "SELECT lines.id, batches.id, tenant, key, endpoint, lines.model FROM lines "
            f"JOIN batches ON batches.seq = lines.batch WHERE lines.id IN ({', '.join(map(str, lines))})"
        )
        rows = await self._database.read(lambda connection: connection.execute(statement).fetchall())
        return {row[0]: LineOwner(*row) for row in rows}

    async def postpone(self, line: LineRow, due: float, *, counts: bool) -> None:
        """A line is to be tried again, not before then; whether this was one of its attempts."""
        statement = f"UPDATE lines SET due = ?, attempts = attempts + ? WHERE id = ? AND state = {LineState.WAITING:d}"
        await self._database.write(lambda connection: connection.execute(statement, (due, int(counts), line.id)))

    async def expire(self) -> Counter[str]:
        """End the lines of batches whose time is up. Returns how many lines, by route."""

        def change(connection: Connection) -> Counter[str]:
            ended: Counter[str] = Counter()
            rows = connection.execute(
                "SELECT seq FROM batches WHERE status IN ('validating', 'in_progress') AND expires_at <= ?",
                (self._settled_wall(),),
            ).fetchall()
            for (seq,) in rows:
                lines = _end_lines(connection, seq, LineState.EXPIRED)
                connection.execute("UPDATE batches SET failed = failed + ? WHERE seq = ?", (lines.total(), seq))
                self._set_status(connection, seq, "finalizing", "finalizing_at")
                ended += lines
            return ended

        return await self._database.write(change)

    async def drop(self, batch: BatchRow) -> Counter[str]:
        """End what waits of a batch that is being cancelled. Returns how many lines, by route."""
        return await self._database.write(lambda connection: _end_lines(connection, batch.seq, LineState.DROPPED))

    async def finalize(self, batch: BatchRow) -> bool:
        """Every line is done, and its files are to be written; False where it has ended otherwise."""
        return await self._database.write(
            lambda connection: self._set_status(
                connection, batch.seq, "finalizing", "finalizing_at", was=("in_progress",)
            )
        )

    async def results(self, batch: BatchRow, after: int, count: int) -> Sequence[tuple[int, LineState, str, bytes]]:
        """Ids, states, custom ids and results of the lines that come behind that id."""
        statement = (
            "SELECT id, state, custom_id, result FROM lines INDEXED BY lines_in_order "
            "WHERE batch = ? AND id > ? ORDER BY id LIMIT ?"
        )
        rows = await self._database.read(
            lambda connection: connection.execute(statement, (batch.seq, after, count)).fetchall()
        )
        return [(line, LineState(state), custom_id, result) for line, state, custom_id, result in rows]

    async def finish(self, batch: BatchRow, status: BatchStatus, output: Sequence[tuple[str, Path, str]]) -> None:
        """It has ended. `output` are columns of its files, their parts, and their names."""

        def change(connection: Connection) -> None:
            if not self._set_status(connection, batch.seq, status, f"{status}_at", was=("finalizing", "cancelling")):
                return
            for column, part, filename in output:
                file = self._files.insert(
                    connection,
                    batch.tenant,
                    part,
                    filename=filename,
                    purpose="batch_output",
                    keep_s=batch.output_keep_s,
                )
                connection.execute(f"UPDATE batches SET {column} = ? WHERE seq = ?", (file.id, batch.seq))
            _delete_lines(connection, batch.seq)

        await self._database.write(change)

    async def forget_old(self) -> None:
        """Delete batches that were done long ago."""
        statement = f"DELETE FROM batches WHERE status NOT IN ({STATUSES}) AND created_at < ?"
        oldest = self._settled_wall() - self._keep_s
        await self._database.write(lambda connection: connection.execute(statement, (oldest,)))

    async def waiting(self) -> Sequence[tuple[str, int, float]]:
        """Routes, the lines that wait for each, and since when the oldest does."""
        statement = f"SELECT route, COUNT(*), MIN(since) FROM lines WHERE state = {LineState.WAITING:d} GROUP BY route"
        return await self._database.read(lambda connection: connection.execute(statement).fetchall())

    def _find(self, connection: Connection, tenant: Tenant, id: str) -> BatchRow:
        row = connection.execute(f"SELECT {_COLUMNS} FROM batches WHERE tenant = ? AND id = ?", (tenant, id)).fetchone()
        if row is None:
            raise UnknownObject(f"there is no batch {id[:64]!r}", param="batch_id")
        return BatchRow(*row)

    def _set_status(
        self, connection: Connection, seq: int, status: BatchStatus, column: str, was: Sequence[BatchStatus] = ()
    ) -> bool:
        """Note the change and its time; False where it `was` something else than that."""
        condition = f"AND status IN ({', '.join(repr(before) for before in was)})" if was else ""
        changed = connection.execute(
            f"UPDATE batches SET status = ?, {column} = ? WHERE seq = ? {condition}",
            (status, int(self._clock.wall()), seq),
        )
        return changed.rowcount == 1


def _link(source: os.PathLike[str], target: os.PathLike[str]) -> None:
    try:
        os.link(source, target)
    except OSError:
        # A file system without links.
        shutil.copyfile(source, target)


def _delete_lines(connection: Connection, batch: int) -> None:
    # Of those that a provider has, it will tell what they have cost.
    is_there = f"{LEFT} AND EXISTS (SELECT 1 FROM jobs WHERE jobs.seq = job)"
    connection.execute(f"DELETE FROM lines WHERE batch = ? AND NOT ({is_there})", (batch,))


def _end_lines(connection: Connection, batch: int, state: LineState) -> Counter[str]:
    """End what is open of a batch, and look now at what may hold nothing any more at a provider."""
    connection.execute(
        "UPDATE jobs SET next_at = 0 WHERE seq IN (SELECT DISTINCT job FROM lines WHERE batch = ? AND state = ?)",
        (batch, LineState.SENT),
    )
    rows = connection.execute(f"UPDATE lines SET state = ? WHERE batch = ? AND {_OPEN} RETURNING route", (state, batch))
    return Counter(route for (route,) in rows.fetchall())


def _answer(connection: Connection, result: LineResult, job: int | None) -> bool:
    state = LineState.ANSWERED if result.is_answered else LineState.FAILED
    condition = "state = ?" if job is None else "state = ? AND job = ?"
    values = (LineState.WAITING,) if job is None else (LineState.SENT, job)
    row = connection.execute(
        f"UPDATE lines SET state = ?, result = ? WHERE id = ? AND {condition} RETURNING batch",
        (state, result.text, result.line, *values),
    ).fetchone()
    if row is None:
        return False
    cost = None if result.cost is None else result.cost / PICO_PER_DOLLAR
    connection.execute(
        "UPDATE batches SET completed = completed + ?, failed = failed + ?, input_tokens = input_tokens + ?, "
        "cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ?, "
        "reasoning_tokens = reasoning_tokens + ?, "
        "cost = CASE WHEN ? IS NULL THEN cost ELSE COALESCE(cost, 0) + ? END WHERE seq = ?",
        (
            result.is_answered,
            not result.is_answered,
            result.input_tokens,
            result.cached_tokens,
            result.output_tokens,
            result.reasoning_tokens,
            cost,
            cost,
            row[0],
        ),
    )
    return True

"""Batches at providers, in the database: which lines they hold, how far they are. A line is in one of them at most."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import islice
from sqlite3 import Connection

from backends.clock import Clock
from gateway.batches.batch_store import LEFT, LINE_COLUMNS, STATUSES
from gateway.batches.records import Group, JobRow, JobState, LineRow, LineState, column_list
from gateway.disk.sqlite_file import SqliteFile

_COLUMNS = column_list(JobRow)
_LINE_OVERHEAD = 512
"""Bytes that a line may grow by on its way: our id for it, its model's name at the provider."""


class JobStore:
    """All batches at providers that are not settled."""

    def __init__(self, database: SqliteFile, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def groups(self, routes: Sequence[str], spared: Sequence[int] = ()) -> Sequence[Group]:
        """What waits for these routes and is due, by what can go together; nothing of the batches that are `spared`."""

        marks = ", ".join("?" * len(routes))

        def ask(connection: Connection) -> list[Group]:
            rows = connection.execute(
                "SELECT g.route, b.endpoint, g.model, SUM(g.num_lines), SUM(g.num_bytes), MIN(g.since) FROM "
                "(SELECT route, model, batch, COUNT(*) num_lines, SUM(num_bytes) num_bytes, MIN(since) since "
                f"FROM lines WHERE state = {LineState.WAITING:d} AND due <= ? AND route IN ({marks}) "
                f"AND batch NOT IN ({_numbers(spared)}) GROUP BY route, model, batch) g "
                "JOIN batches b ON b.seq = g.batch WHERE b.status = 'in_progress' GROUP BY 1, 2, 3",
                (self._clock.wall(), *routes),
            )
            return [Group(*row) for row in rows]

        if not routes:
            return ()
        return await self._database.read(ask)

    async def collect(
        self, group: Group, backend: str, max_lines: int, max_bytes: int, spared: Sequence[int] = ()
    ) -> int:
        """Make a job of lines of the group, the oldest first, as many as go into one. Returns how many those are."""

        def change(connection: Connection) -> int:
            rows = connection.execute(
                "SELECT l.id, l.num_bytes FROM lines l JOIN batches b ON b.seq = l.batch "
                f"WHERE l.state = {LineState.WAITING:d} AND l.route = ? AND l.model = ? AND l.due <= ? "
                f"AND b.endpoint = ? AND b.status = 'in_progress' AND b.seq NOT IN ({_numbers(spared)}) ORDER BY l.id",
                (group.route, group.model, self._clock.wall(), group.endpoint),
            )
            taken: list[int] = []
            num_bytes = 0
            for line, size in islice(rows, max_lines):
                num_bytes += size + _LINE_OVERHEAD
                if taken and num_bytes > max_bytes:
                    break
                taken.append(line)
            if not taken:
                return 0
            cursor = connection.execute(
                "INSERT INTO jobs (token, route, backend, endpoint, model) VALUES (?, ?, ?, ?, ?)",
                (secrets.token_hex(12), group.route, backend, group.endpoint, group.model),
            )
            connection.executemany(
                "UPDATE lines SET state = ?, job = ? WHERE id = ?",
                [(LineState.SENT, cursor.lastrowid, line) for line in taken],
            )
            return len(taken)

        return await self._database.write(change)

    async def unsettled(self) -> Sequence[JobRow]:
        """Every job, oldest first."""
        statement = f"SELECT {_COLUMNS} FROM jobs ORDER BY seq"
        rows = await self._database.read(lambda connection: connection.execute(statement).fetchall())
        return [JobRow(*row) for row in rows]

    async def num_open(self, job: JobRow) -> int:
        """Lines of the job that somebody waits for."""
        return await self._database.read(lambda connection: _num_open(connection, job))

    async def lines(self, job: JobRow, after: int, count: int, *, left: bool = False) -> Sequence[tuple[str, LineRow]]:
        """Lines of the job that somebody waits for, or those that are `left`, behind that id, in their order, with the
        ids of their batches.
        """
        wanted = ", ".join(f"l.{name}" for name in LINE_COLUMNS.split(", "))
        statement = (
            f"SELECT (SELECT b.id FROM batches b WHERE b.seq = l.batch), {wanted} FROM lines l "
            f"WHERE l.job = ? AND {LEFT if left else f'state = {LineState.SENT:d}'} AND l.id > ? ORDER BY l.id LIMIT ?"
        )
        values = (job.seq, after, count)
        rows = await self._database.read(lambda connection: connection.execute(statement, values).fetchall())
        return [(row[0], LineRow(*row[1:])) for row in rows]

    async def tenants(self, job: JobRow) -> dict[str, str]:
        """Whose the batches are that have lines in the job, by their ids."""
        statement = "SELECT id, tenant FROM batches WHERE seq IN (SELECT batch FROM lines WHERE job = ?)"
        rows = await self._database.read(lambda connection: connection.execute(statement, (job.seq,)).fetchall())
        return dict(rows)

    async def note_upload(self, job: JobRow, input_file: str, num_lines: int) -> None:
        """The provider has its input: so many lines."""
        values = (input_file, num_lines, job.seq)
        statement = "UPDATE jobs SET state = 'uploaded', attempts = 0, input_file = ?, num_lines = ? WHERE seq = ?"
        await self._database.write(lambda connection: connection.execute(statement, values))

    async def update(self, job: JobRow, state: JobState, next_at: float, *, upstream_batch: str = "") -> None:
        """How far it is now, and when to look again; it has failed at nothing since."""
        values = (state, next_at, upstream_batch or job.upstream_batch, job.seq)
        statement = "UPDATE jobs SET state = ?, next_at = ?, attempts = 0, upstream_batch = ? WHERE seq = ?"
        await self._database.write(lambda connection: connection.execute(statement, values))

    async def postpone(self, job: JobRow, next_at: float) -> None:
        """Something failed: it is to be tried again then."""
        statement = "UPDATE jobs SET attempts = attempts + 1, next_at = ? WHERE seq = ?"
        await self._database.write(lambda connection: connection.execute(statement, (next_at, job.seq)))

    async def release(self, job: JobRow, due: float) -> None:
        """Its lines that have no answer wait again, not before then, with one attempt more."""
        statement = (
            f"UPDATE lines SET state = {LineState.WAITING:d}, job = NULL, due = ?, attempts = attempts + 1 "
            f"WHERE job = ? AND state = {LineState.SENT:d}"
        )
        await self._database.write(lambda connection: connection.execute(statement, (due, job.seq)))

    async def settle(self, job: JobRow) -> None:
        """It is over, and nothing of it waits."""

        def change(connection: Connection) -> None:
            connection.execute("DELETE FROM jobs WHERE seq = ?", (job.seq,))
            is_done = f"batch NOT IN (SELECT seq FROM batches WHERE status IN ({STATUSES}))"
            connection.execute(f"DELETE FROM lines WHERE job = ? AND {LEFT} AND {is_done}", (job.seq,))

        await self._database.write(change)


def _num_open(connection: Connection, job: JobRow) -> int:
    (count,) = connection.execute(
        f"SELECT COUNT(*) FROM lines WHERE job = ? AND state = {LineState.SENT:d}", (job.seq,)
    ).fetchone()
    assert isinstance(count, int), "a count"
    return count


def _numbers(seqs: Sequence[int]) -> str:
    return ", ".join(map(str, seqs))

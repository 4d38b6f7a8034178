"""The answers in memory, written behind into a file, so that a restart loses nothing and a kill the last seconds.

SQLite keeps the file whole through kills and torn writes. What is there is read once, at the start.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from backends.clock import Clock
from backends.errors import ConfigurationError
from policies.cache.semantic.answers.memory import MemoryAnswerStore
from policies.cache.semantic.contracts import AnswerStatistics, History, Question, StoredAnswer
from policies.loop import Loop
from policies.passing import is_damaged, is_passing
from policies.private_sqlite import make_private

_WRITE_EVERY_S = 2.0
_MAX_WAITING = 100_000
_MAX_WAITING_BYTES = 64 * 1024**2
"""Of answers that wait for a disk that is full, beside those in memory. That others are gone is still noted."""
_CREATE = """
CREATE TABLE IF NOT EXISTS answers (
    id TEXT PRIMARY KEY, packed BLOB NOT NULL, expires REAL NOT NULL,
    good REAL NOT NULL DEFAULT 0, bad REAL NOT NULL DEFAULT 0, served INTEGER NOT NULL DEFAULT 0,
    answer_id TEXT
) WITHOUT ROWID
"""
_COLUMNS = "SELECT name FROM pragma_table_info('answers')"
_ADD_ANSWER_ID = "ALTER TABLE answers ADD COLUMN answer_id TEXT"
"""Files of earlier versions have none. It is NULL where an entry still has the one that it was stored with."""
_PUT = """
INSERT INTO answers (id, packed, expires) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET packed = excluded.packed, answer_id = NULL
"""
_UNITE = "UPDATE answers SET answer_id = ? WHERE id = ?"
_SELECT = "SELECT * FROM answers WHERE expires > ?"
"""Also of a file of an earlier version that cannot be written."""
_RECORD = "UPDATE answers SET good = good + ?, bad = bad + ?, served = served + ? WHERE id = ?"
_DELETE = "DELETE FROM answers WHERE id = ?"
_DECODER = msgspec.msgpack.Decoder(StoredAnswer)
_ENCODE = msgspec.msgpack.Encoder().encode
_LOGGER = logging.getLogger(__name__)

_Change = tuple[str, tuple[object, ...]]
_Row = Sequence[Any]


class FileAnswerStore:
    """A `MemoryAnswerStore` with a file behind it, which no other process should write: `is_ours` says whether none has
    it. Where one has, all is in memory alone.

    `make` is given what to call with entries that are gone, and returns the store in memory.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[Callable[[Question, Sequence[str]], None]], MemoryAnswerStore],
        clock: Clock,
        on_gone: Callable[[Question, Sequence[str]], None],
        *,
        is_ours: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_ours = is_ours
        self._has_file = True
        self._path = path
        self._clock = clock
        self._on_gone = on_gone
        self._memory = make(self._gone)
        self._changes: list[_Change] = []
        self._num_bytes = 0
        """Of the answers among the changes."""
        self._loop = Loop("semantic_answers", clock)
        self._is_open = False
        self._writing = asyncio.Lock()
        self._errors = 0
        self._dropped = 0

    async def open(self) -> None:
        """Read the file; one that is damaged is put aside. One that cannot be written for now is read all the same.

        Raises: ConfigurationError where there cannot be one.
        """
        await self._memory.open()
        self._has_file = self._is_ours()
        if not self._has_file:
            self._changes.clear()
            return
        try:
            rows = await asyncio.to_thread(self._read)
        except OSError as error:
            raise ConfigurationError(f"the semantic cache cannot keep answers in {self._path}: {error}") from error
        for _, packed, _, good, bad, served, *united in rows:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                answer = _DECODER.decode(packed)
                if any(united):
                    answer = msgspec.structs.replace(answer, answer_id=united[0])
                self._memory.put(answer)
                self._memory.record(answer.question.scope, answer.id, good=good, bad=bad, served=served)
        self._loop.start(self._write_until_cancelled)
        self._is_open = True

    async def aclose(self) -> None:
        """Write what is unwritten. Safe to call twice."""
        if self._is_open:
            self._is_open = False
            await self._loop.aclose()
            await self._write()
        await self._memory.aclose()

    async def get(self, scope: bytes, ids: Sequence[str]) -> Sequence[tuple[StoredAnswer, History] | None]:
        """Each entry of that scope with its history; None where it is gone."""
        return await self._memory.get(scope, ids)

    def put(self, answer: StoredAnswer) -> None:
        """Keep it until it expires; in the file soon."""
        self._memory.put(answer)
        packed = _ENCODE(answer)
        self._change(_PUT, answer.id, packed, answer.expires, num_bytes=len(packed))

    def record(self, scope: bytes, id: str, *, good: float = 0.0, bad: float = 0.0, served: int = 0) -> None:
        """Add to an entry's history."""
        self._change(_RECORD, good, bad, served, id)
        self._memory.record(scope, id, good=good, bad=bad, served=served)

    def unite(self, scope: bytes, one: str, other: str) -> None:
        """All entries of two answer_ids have that of more of them from now on."""
        names, into = self._memory.smaller(scope, one, other)
        for name in names:
            self._change(_UNITE, into, name)
        self._memory.unite(scope, one, other)

    def delete(self, scope: bytes, ids: Sequence[str]) -> None:
        """Forget entries."""
        self._memory.delete(scope, ids)

    async def listing(
        self,
        scope: bytes | None,
        count: int,
        *,
        tag: str | None = None,
        model: str | None = None,
        after: tuple[bytes, str] | None = None,
    ) -> Sequence[tuple[StoredAnswer, History]]:
        """As of the store in memory."""
        return await self._memory.listing(scope, count, tag=tag, model=model, after=after)

    def statistics(self) -> AnswerStatistics:
        """The counters of the store in memory, and failures of the file."""
        held = self._memory.statistics()
        return msgspec.structs.replace(held, errors=self._errors, dropped=held.dropped + self._dropped)

    def _gone(self, question: Question, ids: Sequence[str]) -> None:
        for gone in ids:
            self._change(_DELETE, gone)
        self._on_gone(question, ids)

    def _change(self, statement: str, *values: object, num_bytes: int = 0) -> None:
        if not self._has_file:
            return
        if len(self._changes) < _MAX_WAITING and self._num_bytes + num_bytes <= _MAX_WAITING_BYTES:
            self._changes.append((statement, values))
            self._num_bytes += num_bytes
        else:
            self._dropped += 1

    async def _write_until_cancelled(self) -> None:
        while True:
            await self._clock.sleep(_WRITE_EVERY_S)
            await asyncio.shield(self._write())

    async def _write(self) -> None:
        async with self._writing:
            changes, self._changes = self._changes, []
            num_bytes = self._num_bytes
            if not changes:
                return
            if not self._is_ours():
                self._dropped += len(changes)
                self._num_bytes -= num_bytes
                return
            try:
                await asyncio.to_thread(self._commit, changes)
            except (OSError, sqlite3.Error) as error:
                self._errors += 1
                self._changes = changes + self._changes
                _LOGGER.warning("answers of the semantic cache are not written: %s", error)
            else:
                self._num_bytes -= num_bytes

    def _commit(self, changes: Sequence[_Change]) -> None:
        with closing(self._connect()) as connection, connection:
            _make_table(connection)
            for statement, values in changes:
                connection.execute(statement, values)

    def _read(self) -> list[_Row]:
        """What is stored. Raises: OSError where there is and can be no such folder."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return self._rows()
        except OSError as error:
            if not is_passing(error):
                raise
            problem: Exception = error
        except sqlite3.Error as error:
            problem = error
        if isinstance(problem, sqlite3.Error) and is_damaged(problem):
            try:
                return self._begin_anew(problem)
            except (OSError, sqlite3.Error) as error:
                problem = error
        self._errors += 1
        _LOGGER.error("stored answers are only read for now, %s cannot be written: %s", self._path, problem)
        return self._rows_as_they_are()

    def _begin_anew(self, problem: sqlite3.Error) -> list[_Row]:
        aside = self._path.with_name(self._path.name + ".damaged")
        self._path.replace(aside)
        _LOGGER.warning("stored answers cannot be read; the file is kept as %s: %s", aside, problem)
        return self._rows()

    def _rows(self) -> list[_Row]:
        with closing(self._connect()) as connection, connection:
            _make_table(connection)
            connection.execute("DELETE FROM answers WHERE expires <= ?", (self._clock.wall(),))
            return list(connection.execute(_SELECT, (self._clock.wall(),)))

    def _rows_as_they_are(self) -> list[_Row]:
        """Without a byte written; where even SQLite's log cannot be read without, what a kill left in it is missed."""
        for mode in ("mode=ro", "immutable=1"):
            with suppress(sqlite3.Error):
                address = f"{self._path.absolute().as_uri()}?{mode}"
                with closing(sqlite3.connect(address, uri=True, timeout=5.0)) as connection:
                    return list(connection.execute(_SELECT, (self._clock.wall(),)))
        return []

    def _connect(self) -> sqlite3.Connection:
        make_private(self._path)
        connection = sqlite3.connect(self._path, timeout=5.0)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection


def _make_table(connection: sqlite3.Connection) -> None:
    connection.execute(_CREATE)
    if ("answer_id",) not in connection.execute(_COLUMNS).fetchall():
        connection.execute(_ADD_ANSWER_ID)

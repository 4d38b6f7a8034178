"""What is asked of a database, and how it tells that it is away, or does not take a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class RowRefused(Exception):
    """The database is there, and does not take one of these rows."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a database is for."""

    name: str
    """As messages call it."""
    setting: str
    """Where a policy names it."""
    mark: int
    """In the head of a SQLite file it says whose the file is; in PostgreSQL it is the lock that orders who writes."""


class Transaction(Protocol):
    """What can be asked in one; placeholders are question marks."""

    def execute(self, sql: str, values: Sequence[object] = ()) -> int:
        """Change something: how many rows that were."""

    def fetch(self, sql: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a question."""

    def columns(self, table: str) -> list[str]:
        """The names of a table's columns; none where there is no such table."""

    def insert(self, table: str, names: str, columns: Sequence[Sequence[Any]]) -> int:
        """Add those rows that are not there yet: how many. `columns` has the values of each of the `names`, one for
        each row. Raises: RowRefused.
        """


class Database(Protocol):
    """One connection, of one thread. Each method raises StoreUnavailable where the database is away."""

    seq: str
    """The type of a number that only ever grows."""
    is_in_process: bool
    """Whether it is this process that computes what it is asked."""
    num_connected: int
    """How often it has connected: behind another connection there may be another database."""

    def place(self, seen_from: Path) -> str:
        """Which one it is, in one spelling and without a secret: of a file the way there from that folder, for both may
        be moved together.
        """

    def writing(self) -> AbstractContextManager[Transaction]:
        """One of these at a time among all processes; done as a whole at its end, and not at all where it raises."""

    def reading(self) -> AbstractContextManager[Transaction]:
        """Everything in it is of the same moment."""

    def close(self) -> None:
        """Let go of the connection. The next transaction makes another one."""

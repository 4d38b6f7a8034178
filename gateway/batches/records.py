"""What is stored of files, batches, their lines and the batches at providers: rows as values, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal, NewType

import msgspec

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
UNFINISHED: tuple[BatchStatus, ...] = ("validating", "in_progress", "finalizing", "cancelling")
JobState = Literal["new", "uploaded", "running", "cancelling"]
Tenant = NewType("Tenant", str)


class LineState(IntEnum):
    """What has become of a line; the first two are not done."""

    WAITING = 0
    SENT = 1
    """In a batch at a provider."""
    ANSWERED = 2
    FAILED = 3
    EXPIRED = 4
    DROPPED = 5


class FileRow(msgspec.Struct, frozen=True):
    """A file of a tenant; times are seconds since the Unix epoch."""

    seq: int
    id: str
    tenant: Tenant
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int


class BatchRow(msgspec.Struct, frozen=True):
    """A batch of a tenant. `metadata` and `errors` are JSON, "" where there is none."""

    seq: int
    id: str
    tenant: Tenant
    key: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: str
    output_keep_s: int | None
    status: BatchStatus
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    output_file_id: str | None
    error_file_id: str | None
    errors: str
    model: str | None
    total: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost: float | None


class LineRow(msgspec.Struct, frozen=True):
    """One line of a batch that waits: where its request lies in the batch's input, and who answers it."""

    id: int
    batch: int
    custom_id: str
    offset: int
    num_bytes: int
    model: str
    route: str
    attempts: int


class LineOwner(msgspec.Struct, frozen=True):
    """Whose a line is, and what it asks."""

    line: int
    batch: str
    tenant: Tenant
    key: str
    endpoint: str
    model: str


class NewLine(msgspec.Struct, frozen=True):
    """A line that was found good."""

    custom_id: str
    offset: int
    num_bytes: int
    model: str
    route: str


class LineResult(msgspec.Struct, frozen=True):
    """What a line came to: its line of the output or error file, and what it has used."""

    line: int
    is_answered: bool
    text: bytes
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int | None = None
    """Pico-dollars."""


class JobRow(msgspec.Struct, frozen=True):
    """A batch at a provider, with lines of any number of batches here; ids are the provider's, "" until known."""

    seq: int
    token: str
    route: str
    backend: str
    endpoint: str
    model: str
    state: JobState
    input_file: str
    upstream_batch: str
    num_lines: int
    """As many as it had when it was uploaded."""
    attempts: int
    next_at: float


class Group(msgspec.Struct, frozen=True):
    """Lines that could go to a provider together."""

    route: str
    endpoint: str
    model: str
    num_lines: int
    num_bytes: int
    since: float
    """When the one that has waited longest began to."""


def column_list(record: type[msgspec.Struct]) -> str:
    """The columns of a record's table, in its order."""
    return ", ".join(record.__struct_fields__)


TABLES: Sequence[str] = (
    """CREATE TABLE IF NOT EXISTS files (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL, num_bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS files_of ON files (tenant, seq)",
    """CREATE TABLE IF NOT EXISTS batches (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL, key TEXT NOT NULL, endpoint TEXT NOT NULL, input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL, metadata TEXT NOT NULL, output_keep_s INTEGER, status TEXT NOT NULL,
    created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, in_progress_at INTEGER, finalizing_at INTEGER,
    completed_at INTEGER, failed_at INTEGER, expired_at INTEGER, cancelling_at INTEGER, cancelled_at INTEGER,
    output_file_id TEXT, error_file_id TEXT, errors TEXT NOT NULL DEFAULT '', model TEXT,
    total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0, cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0, reasoning_tokens INTEGER NOT NULL DEFAULT 0, cost REAL)""",
    "CREATE INDEX IF NOT EXISTS batches_of ON batches (tenant, seq)",
    "CREATE INDEX IF NOT EXISTS batches_by_status ON batches (status)",
    """CREATE TABLE IF NOT EXISTS lines (id INTEGER PRIMARY KEY AUTOINCREMENT, batch INTEGER NOT NULL,
    custom_id TEXT NOT NULL, offset INTEGER NOT NULL, num_bytes INTEGER NOT NULL, model TEXT NOT NULL,
    route TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, state INTEGER NOT NULL DEFAULT 0,
    since REAL NOT NULL, due REAL NOT NULL DEFAULT 0, job INTEGER, result BLOB)""",
    "CREATE INDEX IF NOT EXISTS lines_of ON lines (batch, state, route, id)",
    "CREATE INDEX IF NOT EXISTS lines_in_order ON lines (batch)",
    """CREATE INDEX IF NOT EXISTS lines_waiting ON lines (route, model, batch, since, num_bytes, due, state)
    WHERE state = 0""",
    "CREATE INDEX IF NOT EXISTS lines_sent ON lines (job) WHERE state = 1",
    "CREATE INDEX IF NOT EXISTS lines_left ON lines (job) WHERE state IN (4, 5)",
    """CREATE TABLE IF NOT EXISTS jobs (seq INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT NOT NULL, route TEXT NOT NULL,
    backend TEXT NOT NULL, endpoint TEXT NOT NULL, model TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'new',
    input_file TEXT NOT NULL DEFAULT '', upstream_batch TEXT NOT NULL DEFAULT '',
    num_lines INTEGER NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL DEFAULT 0)""",
)

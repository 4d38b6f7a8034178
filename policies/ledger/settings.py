"""The part of the policy file about the ledger: where its rows are kept, for how long, and whose days it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from backends.config import ByteSize, Config, Duration
from policies.database_url import URL_MEANING, DatabaseUrl, is_postgres, sqlite_path
from policies.time_zone import TimeZoneName

SEGMENT_BYTES = 8 * 1024**2
"""What the journal grows by."""


class LedgerPolicy(Config):
    """A row for every call: who made it, who answered it, and what it used."""

    url: DatabaseUrl = Field(description=URL_MEANING)
    journal: str | None = Field(
        None,
        min_length=1,
        description="A folder of a local disk where rows wait for the store. Without it the path of SQLite's file with "
        "`.journal` behind it; PostgreSQL needs one.",
    )
    journal_size: ByteSize = Field(
        512 * 1024**2,
        ge=4 * SEGMENT_BYTES,
        le=64 * 1024**3,
        description="Of each worker: once that much waits for a store that is away, new rows are dropped and counted.",
    )
    durability: Literal["process", "power"] = Field(
        "process",
        description="What a row that was noted outlives: the end of the `process`, however it comes; or a loss of "
        "`power` too, but for the last tenth of a second.",
    )
    time_zone: TimeZoneName = Field("UTC", description="Whose days are counted, as in `Europe/Berlin`.")
    keep: Duration = Field(
        90 * 86400.0,
        ge=86400.0,
        description="How long rows, hours, users and sessions are kept; what each day came to is kept for ever.",
    )

    @model_validator(mode="after")
    def _has_a_journal(self) -> Self:
        if self.journal is None and is_postgres(self.url):
            raise ValueError("with PostgreSQL give `journal`, a folder of a local disk where rows wait for it")
        return self

    @property
    def journal_folder(self) -> Path | None:
        """Where rows wait; None where nothing says so, for a URL that stands elsewhere is looked at when it is used."""
        if self.journal is not None:
            return Path(self.journal)
        path = sqlite_path(self.url)
        return path.with_name(path.name + ".journal") if path is not None else None

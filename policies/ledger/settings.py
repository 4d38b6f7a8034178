"""The part of the policy file about the ledger: where its rows are kept, for how long, and whose days it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo, WithJsonSchema, field_validator, model_validator

from backends.config import ByteSize, Config, Duration, resolve_secret

SEGMENT_BYTES = 8 * 1024**2
"""What the journal grows by."""
_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def _read_url(value: object, info: ValidationInfo) -> object:
    """A URL as it is, unless it has a password: that one is a secret, which is written by reference."""
    if isinstance(value, str) and "://" in value:
        if value.startswith(_SQLITE):
            if len(value) == len(_SQLITE):
                raise ValueError("give a path: sqlite:///ledger.sqlite3, or sqlite:////var/lib/ledger.sqlite3")
            return value
        if not value.startswith(_POSTGRES):
            raise ValueError("a ledger is kept in SQLite or PostgreSQL: sqlite:///PATH, or postgresql://HOST/DATABASE")
        parts = urlsplit(value)
        if parts.password is not None or "password=" in parts.query:
            raise ValueError("a URL with a password is a secret: write it as env:NAME or file:PATH")
        return value
    return resolve_secret(value, info)


LedgerUrl = Annotated[
    SecretStr,
    BeforeValidator(_read_url),
    WithJsonSchema(
        {
            "type": "string",
            "description": "sqlite:///PATH, postgresql://HOST/DATABASE, or a reference to one",
            "pattern": r"^(sqlite:///|postgres(ql)?://|env:|file:).+$",
            "examples": ["sqlite:////var/lib/slipstream/ledger.sqlite3", "env:LEDGER_URL"],
        }
    ),
]


class LedgerPolicy(Config):
    """A row for every call: who made it, who answered it, and what it used."""

    url: LedgerUrl = Field(
        description="`sqlite:///PATH` (four slashes before a path from the root), or `postgresql://HOST/DATABASE`; one "
        "with a password as env:NAME or file:PATH."
    )
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
    time_zone: str = Field(
        "UTC", min_length=1, max_length=64, description="Whose days are counted, as in `Europe/Berlin`."
    )
    keep: Duration = Field(
        90 * 86400.0,
        ge=86400.0,
        description="How long rows, hours, users and sessions are kept; what each day came to is kept for ever.",
    )

    @field_validator("time_zone")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError('no time zone that this machine knows: names are like "Europe/Berlin"') from None
        return value

    @model_validator(mode="after")
    def _has_a_journal(self) -> Self:
        if self.journal is None and self.is_postgres:
            raise ValueError("with PostgreSQL give `journal`, a folder of a local disk where rows wait for it")
        return self

    @property
    def is_postgres(self) -> bool:
        """Whether the store is PostgreSQL."""
        return self.url.get_secret_value().startswith(_POSTGRES)

    @property
    def sqlite_path(self) -> Path | None:
        """The file, where the store is one."""
        url = self.url.get_secret_value()
        return Path(url.removeprefix(_SQLITE)) if url.startswith(_SQLITE) else None

    @property
    def journal_folder(self) -> Path | None:
        """Where rows wait; None where nothing says so, for a URL that stands elsewhere is looked at when it is used."""
        if self.journal is not None:
            return Path(self.journal)
        path = self.sqlite_path
        return path.with_name(path.name + ".journal") if path is not None else None

"""A database as a policy names it: a SQLite file or PostgreSQL, by URL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, SecretStr, ValidationInfo, WithJsonSchema

from backends.config import resolve_secret

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def _read_url(value: object, info: ValidationInfo) -> object:
    """A URL as it is, unless it has a password: that one is a secret, which is written by reference."""
    if isinstance(value, str) and "://" in value:
        if value.startswith(_SQLITE):
            if len(value) == len(_SQLITE):
                raise ValueError("give a path: sqlite:///here.sqlite3, or sqlite:////var/lib/there.sqlite3")
            return value
        if not value.startswith(_POSTGRES):
            raise ValueError("it is kept in SQLite or PostgreSQL: sqlite:///PATH, or postgresql://HOST/DATABASE")
        parts = urlsplit(value)
        if parts.password is not None or "password=" in parts.query:
            raise ValueError("a URL with a password is a secret: write it as env:NAME or file:PATH")
        return value
    return resolve_secret(value, info)


DatabaseUrl = Annotated[
    SecretStr,
    BeforeValidator(_read_url),
    WithJsonSchema(
        {
            "type": "string",
            "description": "sqlite:///PATH, postgresql://HOST/DATABASE, or a reference to one",
            "pattern": r"^(sqlite:///|postgres(ql)?://|env:|file:).+$",
            "examples": ["sqlite:////var/lib/slipstream/ledger.sqlite3", "env:DATABASE_URL"],
        }
    ),
]
URL_MEANING = (
    "`sqlite:///PATH` (four slashes before a path from the root), or `postgresql://HOST/DATABASE`; one with a password "
    "as env:NAME or file:PATH."
)
"""The description of a field with such a URL."""


def is_postgres(url: SecretStr) -> bool:
    """Whether it is PostgreSQL's."""
    return url.get_secret_value().startswith(_POSTGRES)


def sqlite_path(url: SecretStr) -> Path | None:
    """The file, where it is one."""
    text = url.get_secret_value()
    return Path(text.removeprefix(_SQLITE)) if text.startswith(_SQLITE) else None

"""The keys in a database. Each change gets the next version, so that who knows the keys reads only what has changed.

A key stays when it is revoked or has expired: its name is in the ledger, and nobody else shall have it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

from backends.clock import Clock
from backends.errors import ConfigurationError, InvalidRequest, UnknownObject
from gateway.keys.raise_store import TABLES as RAISES_TABLES
from gateway.keys.raise_store import RaiseStore
from gateway.keys.stored_key import COLUMNS, StoredKey, new_key, of_row, to_row
from gateway.sql.database import Database, Purpose, Transaction
from policies.keys.settings import KeyTerms

KEYS = Purpose("key store", "stores.keys.url", 0x534C4B53)
"""What its database is for."""
COPY = Purpose("copy of the keys", "stores.keys.local_copy", 0x534C4B43)
"""What that of a local copy is for."""
_TABLES_VERSION = "1"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS api_key_settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS api_keys (name TEXT PRIMARY KEY, terms TEXT NOT NULL, secrets TEXT NOT NULL, "
    "created_at DOUBLE PRECISION NOT NULL, revoked_at DOUBLE PRECISION, version BIGINT NOT NULL)",
    "CREATE UNIQUE INDEX IF NOT EXISTS api_keys_by_version ON api_keys (version)",
)
_CHANGES = "api_key_changes"
_CHANGES_TABLE = f"CREATE TABLE IF NOT EXISTS {_CHANGES} (version BIGINT PRIMARY KEY, token TEXT NOT NULL)"
_PUT_CHANGE = f"INSERT INTO {_CHANGES} VALUES (?, ?) ON CONFLICT (version) DO UPDATE SET token = excluded.token"
_PUT = (
    f"INSERT INTO api_keys ({COLUMNS}, version) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
    "terms = excluded.terms, secrets = excluded.secrets, created_at = excluded.created_at, "
    "revoked_at = excluded.revoked_at, version = excluded.version WHERE excluded.version > api_keys.version"
)


class Mark(NamedTuple):
    """How far one has read: of which store, and up to which version."""

    identity: str
    version: int
    token: str = ""
    """Of that very change, for a backup that is put back and changed since has another of the same version. Empty where
    a gateway has made it that knew no tokens.
    """


class Changes(NamedTuple):
    """What has changed behind a mark."""

    mark: Mark
    rows: list[tuple[Any, ...]]
    """`COLUMNS` and the version of each key, the latest change last."""
    are_all: bool
    """Whether these are all that there are: what was known before is no more."""


class KeyStore:
    """Of one thread. Each method raises StoreUnavailable where the database is away, ConfigurationError where there is
    none.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.raises = RaiseStore(database, clock)
        """Of budgets, in the same database."""

    def open(self) -> None:
        """Make the tables. Raises: ConfigurationError where they are those of a newer version."""
        with self._database.writing() as transaction:
            for table in (*_TABLES, _CHANGES_TABLE, *RAISES_TABLES):
                transaction.execute(table)
            settings = dict(transaction.fetch("SELECT name, value FROM api_key_settings"))
            if settings.get("version", _TABLES_VERSION) != _TABLES_VERSION:
                raise ConfigurationError("the keys were written by a newer version of the gateway")
            if not settings:
                made = {"version": _TABLES_VERSION, "identity": secrets.token_hex(16)}
                for setting in made.items():
                    transaction.execute("INSERT INTO api_key_settings VALUES (?, ?)", setting)

    def create(self, name: str, terms: KeyTerms) -> tuple[StoredKey, str]:
        """A new key, and its secret, which nobody can be told again. Raises: InvalidRequest."""
        key, secret = new_key(name, terms, self._clock.wall())
        with self._database.writing() as transaction:
            if _read(transaction, name) is not None:
                raise InvalidRequest(f'the name "{name}" is taken; a revoked key keeps its own', param="name")
            _write(transaction, key)
        return key, secret

    def rotate(self, name: str, overlap_s: float, change: dict[str, Any]) -> tuple[StoredKey, str]:
        """The key with a new secret, and that; those before it go on for the overlap. `change`: of its terms.

        Raises: UnknownObject, InvalidRequest.
        """
        with self._database.writing() as transaction:
            key = _known(transaction, name)
            key, secret = key.rotated(key.terms.model_copy(update=change), self._clock.wall(), overlap_s)
            _write(transaction, key)
        return key, secret

    def revoke(self, name: str) -> StoredKey:
        """The key, which nobody can use from now on. Raises: UnknownObject."""
        with self._database.writing() as transaction:
            key = _known(transaction, name)
            if key.revoked_at is None:
                key = StoredKey(key.name, key.terms, key.secrets, key.created_at, self._clock.wall())
                _write(transaction, key)
        return key

    def get(self, name: str) -> StoredKey:
        """The key of that name. Raises: UnknownObject."""
        with self._database.reading() as transaction:
            return _known(transaction, name)

    def page(self, limit: int, *, after: str = "") -> list[StoredKey]:
        """Keys in the order of their names, those behind that name."""
        sql = f"SELECT {COLUMNS} FROM api_keys WHERE name > ? ORDER BY name LIMIT ?"
        with self._database.reading() as transaction:
            return [of_row(row) for row in transaction.fetch(sql, (after, limit))]

    def changes(self, since: Mark | None) -> Changes:
        """What has changed since then; all that there are for None, and where the store is another one or a state of
        this one that has not come from then.
        """
        with self._database.reading() as transaction:
            mark = _mark(transaction)
            if mark == since:
                return Changes(mark, [], are_all=False)
            are_all = since is None or mark.version < since.version or _mark_at(transaction, since.version) != since
            behind = 0 if since is None or are_all else since.version
            sql = f"SELECT {COLUMNS}, version FROM api_keys WHERE version > ? ORDER BY version"
            return Changes(mark, list(transaction.fetch(sql, (behind,))), are_all)

    def mark(self) -> Mark:
        """How far it goes."""
        with self._database.reading() as transaction:
            return _mark(transaction)

    def follow(self, changes: Changes) -> None:
        """Be a copy of the store that these changes are of."""
        with self._database.writing() as transaction:
            if changes.are_all:
                transaction.execute("DELETE FROM api_keys")
                transaction.execute(f"DELETE FROM {_CHANGES}")
                transaction.execute(
                    "UPDATE api_key_settings SET value = ? WHERE name = 'identity'", (changes.mark.identity,)
                )
            for row in changes.rows:
                transaction.execute(_PUT, row)
            transaction.execute(_PUT_CHANGE, changes.mark[1:])

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()


def _mark(transaction: Transaction) -> Mark:
    ((version,),) = transaction.fetch("SELECT MAX(version) FROM api_keys")
    return _mark_at(transaction, version or 0)


def _mark_at(transaction: Transaction, version: int) -> Mark:
    ((identity,),) = transaction.fetch("SELECT value FROM api_key_settings WHERE name = 'identity'")
    tokens: Iterable[tuple[str]] = ()
    if transaction.columns(_CHANGES):
        tokens = transaction.fetch(f"SELECT token FROM {_CHANGES} WHERE version = ?", (version,))
    return Mark(identity, version, next((token for (token,) in tokens), ""))


def _known(transaction: Transaction, name: str) -> StoredKey:
    key = _read(transaction, name)
    if key is None:
        raise UnknownObject(f'the key store has no key named "{name}"')
    return key


def _read(transaction: Transaction, name: str) -> StoredKey | None:
    rows: Iterable[tuple[Any, ...]] = transaction.fetch(f"SELECT {COLUMNS} FROM api_keys WHERE name = ?", (name,))
    return next((of_row(row) for row in rows), None)


def _write(transaction: Transaction, key: StoredKey) -> None:
    # Who writes is alone, so versions are in the order of commits.
    version = _mark(transaction).version + 1
    transaction.execute(_PUT, (*to_row(key), version))
    if not transaction.columns(_CHANGES):
        transaction.execute(_CHANGES_TABLE)
    transaction.execute(_PUT_CHANGE, (version, secrets.token_hex(8)))

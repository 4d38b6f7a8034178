"""What the processes of a gateway keep, and where: cached answers, owners of objects, batches, the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from backends.clock import Clock
from backends.errors import ConfigurationError
from gateway.api.owners import Owners
from gateway.ledger.days import Days
from gateway.ledger.ledger import Ledger
from gateway.ledger.store import LEDGER, LedgerStore
from gateway.sql.database import Database, Purpose
from policies.cache.store import Store
from policies.cache.store_memory import MemoryEntryStore
from policies.database_url import is_postgres, sqlite_path
from policies.ledger.settings import SEGMENT_BYTES, LedgerPolicy
from policies.schema import Policy, StoresPolicy

if TYPE_CHECKING:
    from gateway.batches.service import Batches
    from gateway.core import Core
    from gateway.ledger.reader import LedgerReader


def build_store(policy: StoresPolicy, clock: Clock) -> Store:
    """Where cached answers live.

    Raises: ConfigurationError if Redis is asked for without the extra.
    """
    if policy.redis is not None:
        from policies.cache.store_redis import build_redis_store

        return build_redis_store(policy.redis, clock)
    return MemoryEntryStore(policy.memory.max_size, clock)


def build_owners(policy: StoresPolicy, clock: Clock, shared_directory: Path | None) -> Owners:
    """Who remembers whose the objects at upstreams are; together with other processes where there is a place for it."""
    if policy.redis is not None:
        from policies.objects.owners_redis import build_owners_redis

        return Owners(clock, build_owners_redis(policy.redis, clock))
    folder = Path(policy.batches.folder) if policy.batches is not None else shared_directory
    if folder is None:
        return Owners(clock)
    from gateway.api.owners_file import OwnersInFile

    return Owners(clock, OwnersInFile(folder / "objects.sqlite3", clock))


def build_batches(policy: StoresPolicy, core: Core) -> Batches | None:
    """What answers /v1/files and /v1/batches; None where the policy keeps none."""
    if policy.batches is None:
        return None
    from gateway.batches.service import Batches

    return Batches(core, policy.batches)


def build_ledger(policy: LedgerPolicy, clock: Clock) -> Ledger:
    """What the rows of calls go to.

    Raises: ConfigurationError.
    """
    folder = policy.journal_folder
    if folder is None:
        raise ConfigurationError("ledger: give `journal`, a folder of a local disk where rows wait for the store")
    return Ledger(
        LedgerStore(build_ledger_database(policy), policy.time_zone),
        folder,
        max_segments=policy.journal_size // SEGMENT_BYTES,
        days=Days(policy.time_zone),
        keep_s=policy.keep,
        outlives_power=policy.durability == "power",
        clock=clock,
    )


def build_ledger_reader(policy: Policy) -> LedgerReader | None:
    """What the dashboard reads the ledger with, where one is kept. Raises: ConfigurationError."""
    if policy.ledger is None:
        return None
    from gateway.ledger.reader import LedgerReader

    return LedgerReader(build_ledger_database(policy.ledger, is_read_only=True), policy.ledger.time_zone)


def build_ledger_database(policy: LedgerPolicy, *, is_read_only: bool = False) -> Database:
    """The database that the policy names; to be read alone, it is not made.

    Raises: ConfigurationError.
    """
    return build_database(policy.url, LEDGER, outlives_power=policy.durability == "power", may_make=not is_read_only)


def build_database(url: SecretStr, purpose: Purpose, *, outlives_power: bool, may_make: bool) -> Database:
    """A database at that URL. Raises: ConfigurationError."""
    path = sqlite_path(url)
    if path is not None:
        from gateway.sql.sqlite import SqliteDatabase

        return SqliteDatabase(path, purpose, outlives_power=outlives_power, may_make=may_make)
    if is_postgres(url):
        from gateway.sql.postgres import PostgresDatabase

        return PostgresDatabase(url.get_secret_value(), purpose)
    # Of a reference only its text is there while a policy is read.
    raise ConfigurationError(f"{purpose.setting} is no URL of a store: sqlite:///PATH, or postgresql://HOST/DATABASE")

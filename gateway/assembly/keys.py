"""The key store that a policy names, and what a process knows of it."""

from __future__ import annotations

from pathlib import Path

from backends.clock import Clock
from backends.errors import ConfigurationError
from gateway.assembly.stores import build_database
from gateway.keys.key_store import COPY, KEYS, KeyStore
from gateway.keys.known_keys import RowReader
from gateway.keys.stored_keys import StoredKeys
from gateway.runtime import Runtime
from policies.keys.settings import KeyStorePolicy
from policies.limits.raises import Raises
from policies.policy_file.load import LoadedPolicy


def build_key_store(policy: KeyStorePolicy, clock: Clock, *, may_make: bool) -> KeyStore:
    """The store itself, for one thread; whether its SQLite file is made where there is none.

    Raises: ConfigurationError.
    """
    # A key that was given out, or revoked, is so for good.
    return KeyStore(build_database(policy.url, KEYS, outlives_power=True, may_make=may_make), clock)


def build_stored_keys(
    policy: KeyStorePolicy | None, clock: Clock, reader: RowReader, raises: Raises
) -> StoredKeys | None:
    """The keys of this process; None where the policy has no key store.

    Raises: ConfigurationError.
    """
    if policy is None:
        return None
    copy = None
    if policy.local_copy is not None:
        from gateway.sql.sqlite import SqliteDatabase

        copy = KeyStore(SqliteDatabase(Path(policy.local_copy), COPY), clock)
    maker = build_key_store(policy, clock, may_make=True)

    def make() -> None:
        try:
            maker.open()
        finally:
            maker.close()

    return StoredKeys(make, build_key_store(policy, clock, may_make=False), copy, clock, reader=reader, raises=raises)


def check_key_names(loaded: LoadedPolicy, runtime: Runtime, keys: StoredKeys | None) -> None:
    """Whether a key that is new in the policy file has the name of a stored one. Raises: ConfigurationError.

    What is in both at the start is the file's: whether a gateway starts does not depend on what is in the store.
    """
    if keys is None:
        return
    before = {key.name for key in runtime.loaded.policy.keys}
    taken = sorted({key.name for key in loaded.policy.keys}.difference(before).intersection(keys.names()))
    if taken:
        raise ConfigurationError(f"keys: the key store has a key of that name: {', '.join(taken[:10])}")

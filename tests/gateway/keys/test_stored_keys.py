"""The keys that a process knows: who is let in while the store is away, at its start too, and when it is back."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from backends.clock import SystemClock
from backends.errors import ConfigurationError, StoreUnavailable, Unauthorized
from gateway.assembly.keys import build_stored_keys
from gateway.http.auth import Keyring
from gateway.keys.key_store import KEYS, KeyStore
from gateway.keys.known_keys import RowReader
from gateway.keys.stored_keys import StoredKeys
from gateway.sql.postgres import PostgresDatabase
from gateway.sql.sqlite import SqliteDatabase
from policies.keys.settings import KeyStorePolicy, KeyTerms
from policies.limits.raises import Raises
from tests.support.ledger import running_postgres
from tests.support.small_disk import fill, make_read_only, small_disk

CLOCK = SystemClock()
UNKNOWN = "sk-slip-" + "0" * 64


def stored_keys(url: str, copy: Path | None = None) -> StoredKeys:
    policy = KeyStorePolicy.model_validate({"url": url, "local_copy": None if copy is None else str(copy)})
    keys = build_stored_keys(policy, CLOCK, RowReader(), Raises())
    assert keys is not None
    return keys


@asynccontextmanager
async def running(url: str, copy: Path | None = None) -> AsyncIterator[tuple[StoredKeys, Keyring]]:
    keys = stored_keys(url, copy)
    await keys.open()
    try:
        yield keys, Keyring([], CLOCK, keys)
    finally:
        await keys.aclose()


async def outcome(keyring: Keyring, secret: str) -> str:
    """`in`, `401` or `503`."""
    try:
        await keyring.authenticate(secret.encode())
    except Unauthorized:
        return "401"
    except StoreUnavailable as error:
        return "503" if error.retry_after_s is not None else "503 without retry-after"
    return "in"


async def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.02)


async def test_outage_neither_locks_out_nor_lets_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While PostgreSQL is away, over a restart too: who was in is in, who was out is out, of others nobody can tell.
    When it is back it counts, with what others have done meanwhile. The log says so once, without a secret.
    """
    caplog.set_level(logging.INFO)
    copy = tmp_path / "copy.sqlite3"
    with running_postgres() as server:
        store = KeyStore(PostgresDatabase(server.url, KEYS), CLOCK)
        async with running(server.url, copy) as (keys, keyring):
            _, alice = await keys.ask(lambda store: store.create("alice", KeyTerms()))
            _, bob = store.create("bob", KeyTerms())
            _, late = store.create("late", KeyTerms())
            before = [await outcome(keyring, secret) for secret in (alice, bob, UNKNOWN)]
            await keys.ask(lambda store: store.revoke("bob"))
            await keys.refresh()
            store.close()

            server.stop()
            await keys.refresh()
            away = [await outcome(keyring, secret) for secret in (alice, bob, UNKNOWN, "sk-other")]
            with pytest.raises(StoreUnavailable):
                await keys.ask(lambda store: store.revoke("alice"))
            is_up_away = keys.statistics().is_up

        async with running(server.url, copy) as (keys, keyring):
            restarted = [await outcome(keyring, secret) for secret in (alice, bob, UNKNOWN)]
            server.start()
            await wait_until(lambda: keys.statistics().is_up)
            back = [await outcome(keyring, secret) for secret in (alice, bob, UNKNOWN)]
            store.revoke("late")
            await keys.refresh()
            revoked = await outcome(keyring, late)
        store.close()

    assert before == ["in", "in", "401"]
    assert away == ["in", "503", "503", "503"]
    assert not is_up_away
    assert restarted == ["in", "503", "503"]
    assert back == ["in", "401", "401"]
    assert revoked == "401"
    assert caplog.text.count("stored keys that are known go on") == 1
    assert not any(secret in caplog.text for secret in (alice, bob, late, server.url))


async def test_start_without_copy_tells_stored_keys_to_come_back() -> None:
    """503 and not 401, until the store is there; then it is made and its keys are known."""
    with running_postgres() as server:
        server.stop()
        async with running(server.url) as (keys, keyring):
            away = await outcome(keyring, UNKNOWN)
            server.start()
            await wait_until(lambda: keys.statistics().is_up)
            _, alice = await keys.ask(lambda store: store.create("alice", KeyTerms()))
            back = [await outcome(keyring, secret) for secret in (alice, UNKNOWN)]

    assert (away, back) == ("503", ["in", "401"])


async def test_file_that_is_taken_away_is_an_outage_and_one_that_takes_its_place_counts(tmp_path: Path) -> None:
    """It is never begun anew: an empty store would lock everybody out."""
    path, aside = tmp_path / "keys.sqlite3", tmp_path / "aside.sqlite3"
    async with running(f"sqlite:///{path}") as (keys, keyring):
        _, alice = await keys.ask(lambda store: store.create("alice", KeyTerms()))
        await keys.refresh()
        path.rename(aside)
        await wait_until(lambda: not keys.statistics().is_up)
        away = [await outcome(keyring, secret) for secret in (alice, UNKNOWN)]
        is_there = path.exists()
        aside.rename(path)
        await wait_until(lambda: keys.statistics().is_up)
        back = [await outcome(keyring, secret) for secret in (alice, UNKNOWN)]

        other = KeyStore(SqliteDatabase(tmp_path / "other.sqlite3", KEYS), CLOCK)
        other.open()
        _, carl = other.create("carl", KeyTerms())
        other.close()
        (tmp_path / "other.sqlite3").replace(path)
        await keys.refresh()
        replaced = [await outcome(keyring, secret) for secret in (carl, alice)]

    assert away == ["in", "503"]
    assert not is_there
    assert back == ["in", "401"]
    assert replaced == ["in", "401"]


async def test_full_disk_refuses_changes_and_no_callers(tmp_path: Path) -> None:
    """Callers go on, known or not; making and revoking is 503, and is there again with the disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk):
        async with running(f"sqlite:///{disk / 'keys.sqlite3'}") as (keys, keyring):
            _, alice = await keys.ask(lambda store: store.create("alice", KeyTerms()))
            await keys.refresh()
            fill(disk / "filler")
            with pytest.raises(StoreUnavailable):
                await _make_many(keys)
            await keys.refresh()
            during = [await outcome(keyring, secret) for secret in (alice, UNKNOWN)]
            (disk / "filler").unlink()
            await keys.ask(lambda store: store.revoke("alice"))
            await keys.refresh()
            after = await outcome(keyring, alice)

    assert (during, after) == (["in", "401"], "401")


async def test_disk_that_is_read_only_at_the_start_is_a_store_that_is_away(tmp_path: Path) -> None:
    """SQLite can neither write there nor be sure to read what another one writes: the copy says who is known."""
    disk, copy = tmp_path / "disk", tmp_path / "copy.sqlite3"
    disk.mkdir()
    with small_disk(disk):
        url = f"sqlite:///{disk / 'keys.sqlite3'}"
        async with running(url, copy) as (keys, _):
            _, alice = await keys.ask(lambda store: store.create("alice", KeyTerms()))
            await keys.refresh()
        await wait_until(lambda: not _is_open(disk))
        make_read_only(disk)
        async with running(url, copy) as (keys, keyring):
            told = [await outcome(keyring, secret) for secret in (alice, UNKNOWN)]
            with pytest.raises(StoreUnavailable):
                await keys.ask(lambda store: store.revoke("alice"))

    assert told == ["in", "503"]


async def _make_many(keys: StoredKeys) -> None:
    terms = KeyTerms(metadata={"a": "x" * 512})
    for number in range(2000):
        await keys.ask(partial(_make, f"k{number}", terms))


def _make(name: str, terms: KeyTerms, store: KeyStore) -> None:
    store.create(name, terms)


def _is_open(disk: Path) -> bool:
    """Whether this process has a file open there."""
    return any(str(disk) in os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


async def test_store_that_never_answers_is_away_and_the_process_ends_without_it(tmp_path: Path) -> None:
    """Whoever asks is told after five seconds; known keys do not wait at all."""
    stuck = Event()
    async with running(f"sqlite:///{tmp_path / 'keys.sqlite3'}") as (keys, keyring):
        _, alice = await keys.ask(lambda store: store.create("alice", KeyTerms()))
        await keys.refresh()
        waiting = asyncio.create_task(keys.ask(lambda store: stuck.wait(30)))
        await wait_until(lambda: not keys.statistics().is_up)
        during = [await outcome(keyring, secret) for secret in (alice, UNKNOWN)]
        with pytest.raises(StoreUnavailable, match="not answered within 5 s"):
            await waiting
        stuck.set()
        await wait_until(lambda: keys.statistics().is_up)
        after = await outcome(keyring, UNKNOWN)

    assert (during, after) == (["in", "503"], "401")


async def test_file_of_something_else_stops_the_start(tmp_path: Path) -> None:
    """No gateway begins with a store that can never be one."""
    path = tmp_path / "other.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    keys = stored_keys(f"sqlite:///{path}")

    with pytest.raises(ConfigurationError, match=r"something else: name another one in stores\.keys\.url"):
        await keys.open()
    await keys.aclose()

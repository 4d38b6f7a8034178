"""The key store: what is kept, who is let in by it, and what a reader finds changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from backends.errors import ConfigurationError, InvalidRequest, StoreUnavailable, Unauthorized, UnknownObject
from gateway.http.auth import Keyring, Principal, digest_of
from gateway.keys.key_store import COPY, KEYS, KeyStore, Mark
from gateway.keys.known_keys import KnownKeys, RowReader
from gateway.keys.stored_key import PREFIX
from gateway.sql.sqlite import SqliteDatabase
from policies.keys.settings import KeyTerms, parse_moment
from policies.limits.settings import BudgetTerms
from tests.gateway.keys.conftest import Connect
from tests.support.clock import FakeClock
from tests.support.small_disk import fill, small_disk

TERMS = KeyTerms(tenant="acme", team="core", models=("gpt-*",), tags=("a", "b:c"), metadata={"who": "alice"})


def opened(connect: Connect, clock: FakeClock | None = None) -> KeyStore:
    store = KeyStore(connect(), clock or FakeClock())
    store.open()
    return store


def test_key_is_kept_as_it_was_made(connect: Connect) -> None:
    """Its name, its terms, and a hash; the secret is random and told once."""
    store = opened(connect)

    made, secret = store.create("alice", TERMS)
    _, other = store.create("bob", KeyTerms())

    assert store.get("alice") == made
    assert made.terms == TERMS
    assert secret.startswith(PREFIX)
    assert len({secret, other}) == 2
    assert made.secrets[0].digest == digest_of(secret.encode()).hex()
    assert secret not in repr(made)
    assert [key.name for key in store.page(10)] == ["alice", "bob"]
    assert [key.name for key in store.page(10, after="alice")] == ["bob"]


def test_no_secret_is_in_the_files(tmp_path: Path) -> None:
    """Neither whole nor a part that would help to guess it, in the store and its local copy."""
    store = KeyStore(SqliteDatabase(tmp_path / "keys.sqlite3", KEYS), FakeClock())
    copy = KeyStore(SqliteDatabase(tmp_path / "copy.sqlite3", COPY), FakeClock())
    for each in (store, copy):
        each.open()
    secrets = [store.create(f"key-{number}", TERMS)[1] for number in range(20)]
    secrets += [store.rotate("key-1", 60, {})[1], store.rotate("key-2", 0, {})[1]]
    copy.follow(store.changes(None))

    files = [path for path in tmp_path.iterdir() if path.is_file()]

    assert len(files) >= 2
    assert {path.stat().st_mode & 0o077 for path in files} == {0}
    for content in [path.read_bytes() for path in files]:
        assert not any(secret[start : start + 8].encode() in content for secret in secrets for start in (8, 30, 60))


def test_names_are_given_once(connect: Connect) -> None:
    """A revoked key keeps its name: what the ledger has of it is nobody else's."""
    store = opened(connect)
    store.create("alice", TERMS)

    with pytest.raises(InvalidRequest, match='"alice" is taken'):
        store.create("alice", KeyTerms())
    store.revoke("alice")
    with pytest.raises(InvalidRequest):
        store.create("alice", KeyTerms())
    assert store.get("alice").terms == TERMS
    for ask in (store.get, store.revoke, lambda name: store.rotate(name, 0, {})):
        with pytest.raises(UnknownObject, match='no key named "carl"'):
            ask("carl")


def test_what_is_over_is_not_rotated(connect: Connect) -> None:
    """A revoked key for good; an expired one unless it is said when it expires from now on; and not without end."""
    clock = FakeClock()
    store = opened(connect, clock)
    store.create("gone", KeyTerms())
    store.create("old", KeyTerms(expires=parse_moment("2020-01-01")))
    store.create("many", KeyTerms())
    first = store.revoke("gone")

    with pytest.raises(InvalidRequest, match="is revoked; make another one"):
        store.rotate("gone", 60, {})
    with pytest.raises(InvalidRequest, match="is expired; say when"):
        store.rotate("old", 60, {})
    renewed, _ = store.rotate("old", 60, {"expires": parse_moment("2999-01-01")})
    for _ in range(7):
        store.rotate("many", 60, {})
    with pytest.raises(InvalidRequest, match="has 8 secrets that are valid"):
        store.rotate("many", 60, {})

    assert renewed.status(clock.wall()) == "active"
    assert store.revoke("gone") == first
    assert len(store.rotate("many", 0, {})[0].secrets) == 1


def test_reader_finds_only_what_has_changed(connect: Connect) -> None:
    """Once each, the latest state; nothing where nothing has."""
    store, reader = opened(connect), opened(connect)
    for number in range(10):
        store.create(f"key-{number}", TERMS)
    everything = reader.changes(None)

    store.rotate("key-3", 60, {})
    store.revoke("key-7")
    store.revoke("key-3")
    changes = reader.changes(everything.mark)

    assert (len(everything.rows), everything.are_all) == (10, True)
    assert [row[0] for row in changes.rows] == ["key-7", "key-3"]
    assert not changes.are_all
    assert reader.changes(changes.mark).rows == []


def test_another_store_or_an_older_state_is_read_anew(connect: Connect) -> None:
    """A backup that was put back may lack revocations and keys, and nobody may go by what was known before."""
    store = opened(connect)
    store.create("alice", TERMS)
    now = store.mark()

    for other in (Mark("another", now.version), Mark("another", 0), Mark(now.identity, now.version + 5)):
        changes = store.changes(other)
        assert (changes.are_all, len(changes.rows), changes.mark) == (True, 1, now)


def test_many_writers_give_every_change_a_version_of_its_own(connect: Connect) -> None:
    """Whoever reads behind a mark misses none, whatever the order in which they commit."""
    opened(connect)
    stores = [opened(connect) for _ in range(4)]
    reader = opened(connect)
    seen: dict[str, int] = {}
    mark = reader.changes(None).mark

    def work(number: int) -> None:
        for each in range(15):
            stores[number].create(f"key-{number}-{each}", TERMS)

    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(work, number) for number in range(4)]
        while not all(each.done() for each in working):
            changes = reader.changes(mark)
            mark = changes.mark
            seen.update((row[0], row[-1]) for row in changes.rows)
        for each in working:
            each.result()
    seen.update((row[0], row[-1]) for row in reader.changes(mark).rows)

    assert sorted(seen.values()) == list(range(1, 61))


def test_full_disk_makes_no_key_and_keeps_all(tmp_path: Path) -> None:
    """Nothing can be made or revoked until there is room, which is said; who is in stays in."""
    disk = tmp_path / "disk"
    disk.mkdir()
    clock = FakeClock()
    with small_disk(disk):
        store = opened(lambda: SqliteDatabase(disk / "keys.sqlite3", KEYS), clock)
        _, secret = store.create("before", KeyTerms())
        fill(disk / "filler")
        with pytest.raises(StoreUnavailable, match="full"):
            _create_many(store)
        assert _is_in(_keyring_of(store, clock), secret)
        (disk / "filler").unlink()
        _, later = store.create("after", KeyTerms())
        store.revoke("before")
        keyring = _keyring_of(store, clock)
        assert (_is_in(keyring, secret), _is_in(keyring, later)) == (False, True)


def test_newer_tables_and_files_of_others_are_refused(tmp_path: Path) -> None:
    """With a message that says which setting it is."""
    database = SqliteDatabase(tmp_path / "keys.sqlite3", KEYS)
    KeyStore(database, FakeClock()).open()
    with database.writing() as transaction:
        transaction.execute("UPDATE api_key_settings SET value = '2' WHERE name = 'version'")
    KeyStore(SqliteDatabase(tmp_path / "copy.sqlite3", COPY), FakeClock()).open()

    with pytest.raises(ConfigurationError, match="newer version"):
        KeyStore(SqliteDatabase(tmp_path / "keys.sqlite3", KEYS), FakeClock()).open()
    with pytest.raises(ConfigurationError, match=r"something else: name another one in stores\.keys\.url"):
        KeyStore(SqliteDatabase(tmp_path / "copy.sqlite3", KEYS), FakeClock()).open()
    with pytest.raises(ConfigurationError, match="there is no key store"):
        KeyStore(SqliteDatabase(tmp_path / "none.sqlite3", KEYS, may_make=False), FakeClock()).changes(None)


def test_key_that_only_a_newer_version_can_read_lets_nobody_in() -> None:
    """A restriction that is not understood is none that may be left out; the others go on."""
    reader, known = RowReader(), KnownKeys()
    digest = digest_of(b"secret").hex()
    secrets = f'[{{"digest":"{digest}","hint":"cret","created_at":1.0}}]'

    for terms in ("{}", '{"unheard_of": 1}', "[", '{"priority": "highest"}'):
        for key in reader.read([("alice", terms, secrets, 1.0, None, 1)]):
            known.take(key)
        assert (known.find(bytes.fromhex(digest)) is not None) == (terms == "{}")

    assert reader.num_unreadable == 3


def _create_many(store: KeyStore) -> None:
    for number in range(1000):
        store.create(f"full-{number}", KeyTerms(metadata={"filling": "x" * 200}))


class _Source:
    """Keys that nobody is asked for."""

    def __init__(self, known: KnownKeys) -> None:
        self.find, self.named = known.find, known.named

    async def look_for(self, secret: bytes, digest: bytes) -> Principal | None:
        return None


def _keyring_of(store: KeyStore, clock: FakeClock) -> Keyring:
    known = KnownKeys()
    for key in RowReader().read(store.changes(None).rows):
        known.take(key)
    return Keyring([], clock, _Source(known))


def _is_in(keyring: Keyring, secret: str) -> bool:
    try:
        return keyring.recognise(secret.encode()) is not None
    except Unauthorized:
        return False


class _Model:
    """What ought to be: the secrets of each key with the moment at which they stop."""

    def __init__(self) -> None:
        self.secrets: dict[str, dict[str, float]] = {}
        self.expires: dict[str, float] = {}
        self.revoked: set[str] = set()

    def lets_in(self, name: str, secret: str, now: float) -> bool:
        return name not in self.revoked and now < min(self.secrets[name][secret], self.expires[name])


@pytest.mark.parametrize("seed", range(4))
async def test_who_is_let_in_is_what_was_done(connect: Connect, tmp_path: Path, seed: int) -> None:
    """Random keys made, rotated, revoked and expiring, while clocks go on: at every moment a reader of changes, one of
    the local copy, and one that begins anew let in the same callers, and these are the right ones.
    """
    random, clock = Random(seed), FakeClock()
    store, model = opened(connect, clock), _Model()
    copy = KeyStore(SqliteDatabase(tmp_path / "copy.sqlite3", COPY), clock)
    copy.open()
    reader, known = RowReader(), KnownKeys()
    keyring = Keyring([], clock, _Source(known))
    mark = None
    for step in range(60):
        now = clock.wall()
        names = sorted(model.secrets)
        action = random.choice(["create", "create", "rotate", "rotate", "revoke", "wait", "wait"])
        name = random.choice(names) if names else ""
        if action == "create" or not names:
            expires = random.choice([None, now + random.randrange(1, 400)])
            name = f"key-{step}"
            terms = KeyTerms() if expires is None else KeyTerms(expires=datetime.fromtimestamp(expires, UTC))
            _, secret = store.create(name, terms)
            model.secrets[name] = {secret: float("inf")}
            model.expires[name] = float("inf") if expires is None else expires
        elif action == "rotate":
            overlap_s = random.choice([0.0, 5.0, 100.0])
            if name in model.revoked or model.expires[name] <= now or len(model.secrets[name]) > 7:
                continue
            _, secret = store.rotate(name, overlap_s, {})
            former = {each: min(end, now + overlap_s) for each, end in model.secrets[name].items()}
            model.secrets[name] = {**former, secret: float("inf")}
        elif action == "revoke":
            store.revoke(name)
            model.revoked.add(name)
        else:
            await clock.advance(random.choice([0.0, 1.0, 5.0, 50.0]))
        changes = store.changes(mark)
        mark = changes.mark
        for key in reader.read(changes.rows):
            known.take(key)
        copy.follow(store.changes(copy.mark()))
        anew = [_keyring_of(each, clock) for each in (store, copy)] if step % 10 == 9 else []
        for ring in (keyring, *anew):
            for owner, secrets in model.secrets.items():
                for secret in secrets:
                    assert _is_in(ring, secret) == model.lets_in(owner, secret, clock.wall()), (step, owner)


def test_budget_of_a_stored_key_begins_at_midnight_of_the_policy(tmp_path: Path) -> None:
    """As that of a key in the policy file; a time zone of its own counts before."""
    named = KeyTerms(budget=BudgetTerms(usd=5, every="day"))
    other = KeyTerms(budget=BudgetTerms(usd=5, every="day", time_zone="Europe/Berlin"))
    store = KeyStore(SqliteDatabase(tmp_path / "keys.sqlite3", KEYS), FakeClock())
    store.open()
    for name, terms in (("alice", named), ("bob", other)):
        store.create(name, terms)

    alice, bob = RowReader("Asia/Kathmandu").read(store.changes(None).rows)

    # 2026-01-01T00:00:00Z.
    noon = 1767225600.0
    begins = [key.by_digest[0][1].rules[0].windows.at(noon).begins_at - noon for key in (alice, bob)]
    assert begins == [-5.75 * 3600, -3600.0]


def test_key_with_a_budget_lets_nobody_in_where_each_worker_would_give_the_whole(tmp_path: Path) -> None:
    """Others get in."""
    store = KeyStore(SqliteDatabase(tmp_path / "keys.sqlite3", KEYS), FakeClock())
    store.open()
    for name, terms in (("alice", KeyTerms(budget=BudgetTerms(usd=5))), ("bob", KeyTerms())):
        store.create(name, terms)

    alice, bob = RowReader(can_count=False).read(store.changes(None).rows)

    assert (len(alice.by_digest), len(bob.by_digest)) == (0, 1)

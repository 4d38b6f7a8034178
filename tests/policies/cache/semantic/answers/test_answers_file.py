"""Answers over restarts: what was kept is there again with its history, whatever the end was like."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import pytest

from backends.charges.usage import Usage
from backends.errors import ConfigurationError
from policies.cache.entry import AnswerForm, Entry
from policies.cache.semantic.answers.file import FileAnswerStore
from policies.cache.semantic.answers.memory import MemoryAnswerStore
from policies.cache.semantic.contracts import History, Question, StoredAnswer
from tests.support.clock import FakeClock, settle
from tests.support.small_disk import fill, make_read_only, small_disk

SCOPE, OTHER_SCOPE = bytes(range(32)), bytes(range(1, 33))


def answer(name: str, clock: FakeClock, scope: bytes = SCOPE, answer_id: str = "") -> StoredAnswer:
    """An answer that lives for an hour."""
    entry = Entry(AnswerForm.JSON, b'{"id": "\xc3\xa9"}', b"application/json", clock.wall(), Usage(1, 2, 0))
    question = Question(scope, scope + b"group", f"what of {name}")
    return StoredAnswer(
        name,
        question,
        answer_id or name,
        entry,
        "model",
        "owner",
        clock.wall() + 3600,
        ("tag",),
        confirmed_by_other=True,
    )


class Store(FileAnswerStore):
    """A store that remembers whom it told of what is gone."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        self.told: list[str] = []

        def tell(question: Question, ids: Sequence[str]) -> None:
            self.told += ids

        super().__init__(
            path, lambda on_gone: MemoryAnswerStore(1024**2, clock, Random(1), on_gone=on_gone), clock, tell
        )


async def test_answers_file_brings_back_entries_and_histories(tmp_path: Path) -> None:
    """What was put, recorded and deleted before the end holds after it. Nobody else can read it."""
    clock, path = FakeClock(), tmp_path / "new" / "answers"
    store = Store(path, clock)
    await store.open()
    assert path.stat().st_mode & 0o077 == 0
    for name in ("a", "b", "c"):
        store.put(answer(name, clock))
    store.put(answer("x", clock, OTHER_SCOPE))
    store.record(SCOPE, "a", good=1.0, served=2)
    store.record(SCOPE, "b", bad=1.0)
    store.delete(SCOPE, ["c"])
    await store.aclose()
    await store.aclose()

    again = Store(path, clock)
    await again.open()
    found = await again.get(SCOPE, ["a", "b", "c", "x"])
    assert [pair and pair[1] for pair in found] == [History(1.0, 0.0, 2), History(0.0, 1.0, 0), None, None]
    assert found[0] is not None
    assert found[0][0].question == answer("a", clock).question
    assert found[0][0].confirmed_by_other
    again.record(SCOPE, "b", bad=1.0)
    assert again.told == ["b"]
    await again.aclose()


async def test_answers_file_brings_back_what_was_made_one(tmp_path: Path) -> None:
    """And what an entry was put anew as after that."""
    clock, path = FakeClock(), tmp_path / "answers"
    store = Store(path, clock)
    await store.open()
    for name in ("a", "b", "c"):
        store.put(answer(name, clock, answer_id=f"as {name}"))
    store.unite(SCOPE, "as a", "as b")
    store.unite(SCOPE, "as b", "as c")
    store.put(answer("a", clock, answer_id="as a"))
    await store.aclose()

    again = Store(path, clock)
    await again.open()
    found = await again.get(SCOPE, ["a", "b", "c"])
    assert [pair and pair[0].answer_id for pair in found] == ["as a", "as b", "as b"]
    await again.aclose()


@pytest.mark.parametrize("is_read_only", [False, True])
async def test_answers_file_of_an_earlier_version_is_taken_over(tmp_path: Path, is_read_only: bool) -> None:
    """It has no place for answers that were made one."""
    with small_disk(tmp_path):
        clock, path = FakeClock(), tmp_path / "answers"
        earlier = [answer("a", clock), answer("b", clock)]
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "CREATE TABLE answers (id TEXT PRIMARY KEY, packed BLOB NOT NULL, expires REAL NOT NULL,"
                " good REAL NOT NULL DEFAULT 0, bad REAL NOT NULL DEFAULT 0, served INTEGER NOT NULL DEFAULT 0"
                ") WITHOUT ROWID"
            )
            for each in earlier:
                values = (each.id, msgspec.msgpack.encode(each), each.expires, 1.0, 0.0, 3)
                connection.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?)", values)
        if is_read_only:
            make_read_only(tmp_path)
        store = Store(path, clock)
        await store.open()
        (before,) = await store.get(SCOPE, ["a"])
        store.unite(SCOPE, *(each.answer_id for each in earlier))
        await store.aclose()
        again = Store(path, clock)
        await again.open()
        (after,) = await again.get(SCOPE, ["a"])

        assert before is not None
        assert after is not None
        assert (before[0].answer_id, before[1]) == ("a", History(1.0, 0.0, 3))
        assert (after[0].answer_id, after[1]) == ("a" if is_read_only else "b", before[1])
        await again.aclose()


async def test_answers_file_survives_a_kill_but_for_the_last_seconds(tmp_path: Path) -> None:
    """What was written by then is there, although nobody closed anything."""
    clock, path = FakeClock(), tmp_path / "answers"
    killed = Store(path, clock)
    await killed.open()
    killed.put(answer("early", clock))
    await clock.advance(3)
    async with asyncio.timeout(5):
        while killed._writing.locked() or killed._changes:
            await asyncio.sleep(0.01)
    killed.put(answer("late", clock))

    again = Store(path, clock)
    await again.open()
    assert [pair is not None for pair in await again.get(SCOPE, ["early", "late"])] == [True, False]
    await again.aclose()
    await killed.aclose()


async def test_answers_that_wait_to_be_written_have_a_bound_in_bytes(tmp_path: Path) -> None:
    """Those in memory give way to each other, and copies must not heap up beside them while a disk is full; that one
    is gone is noted all the same.
    """
    clock, path = FakeClock(), tmp_path / "answers"
    store = Store(path, clock)
    await store.open()
    store.put(answer("first", clock))
    for number in range(80):
        one = answer(str(number), clock)
        store.put(msgspec.structs.replace(one, entry=msgspec.structs.replace(one.entry, body=bytes(1_000_000))))
    store.delete(SCOPE, ["first"])

    assert store.statistics().dropped == 80 - 64 * 1024**2 // 1_000_000
    await store.aclose()
    again = Store(path, clock)
    await again.open()
    assert await again.get(SCOPE, ["first"]) == [None]
    await again.aclose()


async def test_answers_file_forgets_what_has_expired(tmp_path: Path) -> None:
    """Time passes while nothing runs too."""
    clock, path = FakeClock(), tmp_path / "answers"
    store = Store(path, clock)
    await store.open()
    store.put(answer("a", clock))
    await store.aclose()
    await clock.advance(5000)

    again = Store(path, clock)
    await again.open()
    assert again.statistics().entries == 0
    await again.aclose()


@pytest.mark.parametrize("damage", [b"nonsense" * 1000, b""])
async def test_answers_file_that_is_damaged_is_put_aside(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The store begins anew and says so; an empty file is a new one."""
    clock, path = FakeClock(), tmp_path / "answers"
    path.write_bytes(damage)
    store = Store(path, clock)
    await store.open()
    store.put(answer("a", clock))
    await store.aclose()

    assert (tmp_path / "answers.damaged").exists() == bool(damage)
    assert ("put aside" in caplog.text or "kept as" in caplog.text) == bool(damage)


async def test_answers_file_in_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """The gateway does not start, and says where."""
    (tmp_path / "file").write_text("x")

    with pytest.raises(ConfigurationError, match="file/answers"):
        await Store(tmp_path / "file" / "answers", FakeClock()).open()


async def test_answers_file_that_cannot_be_written_costs_nothing_but_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted and tried again; answers are served all the while."""
    clock, path = FakeClock(), tmp_path / "folder" / "answers"
    store = Store(path, clock)
    await store.open()
    (tmp_path / "folder").rename(tmp_path / "away")
    store.put(answer("a", clock))
    await clock.advance(3)
    async with asyncio.timeout(5):
        while not store.statistics().errors:
            await asyncio.sleep(0.01)
    assert [pair is not None for pair in await store.get(SCOPE, ["a"])] == [True]

    (tmp_path / "away").rename(tmp_path / "folder")
    await settle()
    await store.aclose()
    again = Store(path, clock)
    await again.open()
    assert again.statistics().entries == 1
    await again.aclose()
    assert "not written" in caplog.text


async def test_answers_file_on_a_full_disk_is_read_and_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The gateway starts, serves what was stored, puts nothing aside, and writes again once there is room."""
    with small_disk(tmp_path):
        clock, path = FakeClock(), tmp_path / "answers"
        store = Store(path, clock)
        await store.open()
        store.put(answer("a", clock))
        await store.aclose()
        fill(tmp_path / "filler")

        again = Store(path, clock)
        await again.open()
        errors = again.statistics().errors
        entries = again.statistics().entries
        again.put(answer("b", clock))
        (tmp_path / "filler").unlink()
        await again.aclose()
        last = Store(path, clock)
        await last.open()

        assert (errors, entries, last.statistics().entries) == (1, 1, 2)
        assert not path.with_name("answers.damaged").exists()
        assert "only read for now" in caplog.text
        await last.aclose()


async def test_answers_file_that_is_read_only_is_served_from(tmp_path: Path) -> None:
    """Also where SQLite cannot make its own files beside it."""
    with small_disk(tmp_path):
        clock, path = FakeClock(), tmp_path / "answers"
        store = Store(path, clock)
        await store.open()
        store.put(answer("a", clock))
        await store.aclose()
        make_read_only(tmp_path)

        again = Store(path, clock)
        await again.open()

        assert [pair is not None for pair in await again.get(SCOPE, ["a"])] == [True]
        await again.aclose()
        assert again.statistics().errors


async def test_answers_file_begins_without_a_file_on_a_full_disk(tmp_path: Path) -> None:
    """Nothing is there and nothing can be made: answers live in memory, and are written once there is room."""
    with small_disk(tmp_path):
        fill(tmp_path / "filler")
        clock, path = FakeClock(), tmp_path / "answers"
        store = Store(path, clock)
        await store.open()
        store.put(answer("a", clock))
        (tmp_path / "filler").unlink()
        await store.aclose()
        again = Store(path, clock)
        await again.open()

        assert again.statistics().entries == 1
        await again.aclose()

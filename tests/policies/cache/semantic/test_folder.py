"""A folder of the semantic cache that two gateways were given: it is of the first, and stays whole."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from backends.charges.usage import Usage
from policies.cache.entry import AnswerForm, Entry
from policies.cache.semantic.build import SharedStores
from policies.cache.semantic.contracts import Question, StoredAnswer
from policies.cache.semantic.folder_lock import FolderLock
from policies.schema import StoresPolicy
from tests.support.clock import FakeClock

HOLD = """
import sys
from pathlib import Path
from policies.cache.semantic.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.read()
"""
SCOPE = bytes(32)


@contextmanager
def another_process(folder: Path) -> Iterator[None]:
    """One that has the folder for as long."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield
        process.communicate("")


def make_stores(folder: Path, clock: FakeClock) -> SharedStores:
    """What a gateway with that folder has."""
    return SharedStores(StoresPolicy.model_validate({"semantic": {"folder": str(folder)}}), clock, Random(1))


async def keep(folder: Path, clock: FakeClock, name: str) -> None:
    """A gateway's life: an answer is stored, something is learned."""
    stores = make_stores(folder, clock)
    await stores.open()
    entry = Entry(AnswerForm.JSON, b"{}", b"application/json", clock.wall(), Usage(1, 2, 0))
    question = Question(SCOPE, SCOPE + b"group", f"what of {name}")
    answer = StoredAnswer(name, question, name, entry, "m", "owner", clock.wall() + 3600, (), confirmed_by_other=True)
    stores.answers.put(answer)
    assert [found is not None for found in await stores.answers.get(SCOPE, [name])] == [True]
    assert stores.states is not None
    stores.states.save(name.encode(), b"learned")
    await stores.aclose()


async def kept(folder: Path, clock: FakeClock, *names: str) -> list[tuple[bool, bool]]:
    """Of each name whether its answer and what was learned are there after a restart."""
    stores = make_stores(folder, clock)
    await stores.open()
    answers = await stores.answers.get(SCOPE, names)
    assert stores.states is not None
    states = [await stores.states.load(name.encode()) for name in names]
    await stores.aclose()
    return [(answer is not None, state is not None) for answer, state in zip(answers, states, strict=True)]


async def test_folder_of_another_gateway_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second would take back what the first has learned: it works from memory, and says so once."""
    clock, folder = FakeClock(), tmp_path / "semantic"
    await keep(folder, clock, "first")
    with another_process(folder):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with caplog.at_level(logging.WARNING):
            assert await kept(folder, clock, "first") == [(False, False)]
            await keep(folder, clock, "second")
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    assert caplog.text.count("stores.semantic.folder is used by another gateway") == 2
    await keep(folder, clock, "third")
    assert await kept(folder, clock, "first", "second", "third") == [(True, True), (False, False), (True, True)]


async def test_folder_is_the_processs_over_a_reload(tmp_path: Path) -> None:
    """What replaces the stores has the folder while the old ones still end, and after."""
    clock, folder = FakeClock(), tmp_path / "semantic"
    old, new = make_stores(folder, clock), make_stores(folder, clock)
    await old.open()
    await new.open()
    await old.aclose()
    assert new.states is not None
    new.states.save(b"x", b"learned")
    await new.aclose()

    assert (await kept(folder, clock, "x"))[0][1]


def test_lock_of_a_disk_that_takes_no_file_is_as_if_nobody_had_it(tmp_path: Path) -> None:
    """A read-only folder is read all the same."""
    (tmp_path / "file").write_text("")
    lock = FolderLock(tmp_path / "file")

    assert lock.take()
    lock.release()

"""The journal: what was written is read, once and in order; no kill, no cut and no flip makes a wrong row."""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from gateway.ledger.journal import LOCKS, SEGMENTS, Journal
from gateway.ledger.reading import Adoption, Reading, adopt
from gateway.ledger.row import FIELDS, WORKER_KILLED, Row, Values
from gateway.ledger.segment import RecordKind, is_of_another_version
from policies.ledger.settings import SEGMENT_BYTES
from tests.support.ledger import sample_beginning, sample_row

END = FIELDS.index("end")
encode = msgspec.msgpack.Encoder().encode


def begin(journal: Journal, n: int) -> bool:
    return journal.append(encode(sample_beginning(n)), RecordKind.BEGINNING, n)


def note(journal: Journal, n: int, part: int = 0) -> bool:
    kind = RecordKind.PART if part else RecordKind.CALL
    row = sample_row(n, part=part)
    # Whoever reads has every second one without reading it.
    return journal.append(encode(row), kind, n, row if n % 2 else None)


def large(n: int) -> Row:
    """Of which a few fill a segment."""
    row = sample_row(n)
    row.user = "x" * 500_000
    return row


def note_large(journal: Journal, n: int) -> bool:
    return journal.append(encode(large(n)), RecordKind.CALL, n)


def values(n: int, part: int = 0) -> Values:
    return msgspec.structs.astuple(sample_row(n, part=part))


def abandon(journal: Journal) -> None:
    """What a kill does: the lock is free, and nothing was tidied up."""
    journal.close(is_stored=False)


def adopted(folder: Path, own: Journal) -> tuple[list[Values], list[Values]]:
    """The rows that an adoption finds, and those that it makes of beginnings."""
    found: tuple[list[Values], list[Values]] = ([], [])
    adoption = adopt(folder, own, set())
    assert adoption is not None
    while True:
        rows, are_killed = adoption.take(10)
        if not rows:
            break
        found[are_killed].extend(rows)
    adoption.done()
    return found


def test_rows_are_read_in_order_while_more_are_written(tmp_path: Path) -> None:
    """Beginnings are kept aside until their call is over; a part leaves the call open."""
    journal, reading = Journal(tmp_path, 4), Reading()
    begin(journal, 1)
    begin(journal, 2)
    note(journal, 2, part=1)
    first = reading.take(list(journal.segments), 10)
    note(journal, 2)
    second = reading.take(list(journal.segments), 10)

    assert (first, second) == ([values(2, part=1)], [values(2)])
    assert list(reading.begun) == [1]
    journal.close(is_stored=True)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_passed_over_that_is_written_at_that_moment(tmp_path: Path) -> None:
    """The event loop writes while the writer's thread reads up to the end, however the two are interrupted."""
    journal, reading = Journal(tmp_path, 4), Reading()
    journal.provide()
    number = 60_000
    taken: list[int] = []
    is_over = threading.Event()

    def read() -> None:
        is_last = False
        while not is_last:
            is_last = is_over.is_set()
            taken.extend(row[0] for row in reading.take(list(journal.segments), 10**6))
            journal.clear()
            journal.provide()

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        written = 0
        while written < number:
            written += note(journal, written)
    finally:
        is_over.set()
        reader.join(60)
        sys.setswitchinterval(interval_s)

    assert taken == list(range(number))
    journal.close(is_stored=True)


def test_full_segment_gives_way_and_goes_once_it_is_read(tmp_path: Path) -> None:
    """What is stored is deleted, and a call that is not over keeps its segment."""
    journal, reading = Journal(tmp_path, 4), Reading()
    journal.provide()
    begin(journal, 0)
    number = 0
    while len(journal.segments) == 1:
        number += 1
        note_large(journal, number)
    rows = reading.take(list(journal.segments), 10**6)
    journal.clear()

    assert rows == [msgspec.structs.astuple(large(n)) for n in range(1, number + 1)]
    assert len(journal.segments) == 2
    note(journal, 0)
    reading.take(list(journal.segments), 10)
    journal.clear()
    assert len(journal.segments) == 1
    journal.close(is_stored=True)


def test_journal_without_room_takes_nothing_and_harms_nothing(tmp_path: Path) -> None:
    """Whatever does not fit is refused; what was there before is read, and later there is room again."""
    journal, reading = Journal(tmp_path, 2), Reading()
    journal.provide()
    number = 0
    while note_large(journal, number):
        number += 1
    assert not note_large(journal, number)
    journal.provide()
    assert not note_large(journal, number)

    assert reading.take(list(journal.segments), 10**6) == [msgspec.structs.astuple(large(n)) for n in range(number)]
    journal.clear()
    journal.provide()
    assert note_large(journal, number)
    assert sum(path.stat().st_size for path in tmp_path.glob(f"*{SEGMENTS}")) <= 2 * SEGMENT_BYTES
    journal.close(is_stored=True)


def test_calls_that_last_do_not_hold_the_journal(tmp_path: Path) -> None:
    """Their beginnings are written down anew, so that an hour's segments can go; a kill still makes rows of them."""
    journal, reading = Journal(tmp_path, 6), Reading()
    number = 0
    for _ in range(12):
        begin(journal, 10**6 + number)
        segments = len(journal.segments)
        while len(journal.segments) == segments:
            journal.provide()
            number += 1
            assert note_large(journal, number)
        reading.take(list(journal.segments), 10**6)
        journal.clear()
        journal.carry(reading.begun)
        journal.clear()
    assert len(reading.begun) == 12
    abandon(journal)
    own = Journal(tmp_path, 4)

    rows, killed = adopted(tmp_path, own)

    assert {row[0] for row in killed} >= set(reading.begun)
    assert {row[0] for row in rows} <= set(range(number + 1))
    own.close(is_stored=True)


def test_journal_of_a_dead_worker_is_adopted_by_one(tmp_path: Path) -> None:
    """A living worker's is left alone; a call that was not over is a row that says so."""
    dead, living = Journal(tmp_path, 4), Journal(tmp_path, 4)
    for n in range(25):
        begin(dead, n)
        if n != 7:
            note(dead, n)
    note(living, 1)
    assert adopt(tmp_path, living, set()) is None
    abandon(dead)

    first = adopt(tmp_path, living, set())
    assert isinstance(first, Adoption)
    assert adopt(tmp_path, living, set()) is None
    first.close()
    rows, killed = adopted(tmp_path, living)

    assert rows == [values(n) for n in range(25) if n != 7]
    assert [(row[0], row[END]) for row in killed] == [(7, WORKER_KILLED)]
    assert adopt(tmp_path, living, set()) is None
    assert len(list(tmp_path.glob(f"*{LOCKS}"))) == 1
    living.close(is_stored=True)


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damage_anywhere_makes_no_wrong_row(tmp_path: Path, damage: str) -> None:
    """Whatever byte is lost or changed, the rows that are read are some of those that were written, as they were."""
    random_ = random.Random(damage)
    own = Journal(tmp_path, 4)
    written = Journal(tmp_path, 4)
    for n in range(40):
        begin(written, n)
        note(written, n)
    used = written.segments[0].end
    path = written.segments[0].path
    abandon(written)
    content = path.read_bytes()[: used + 64]
    good = [values(n) for n in range(40)]
    for _ in range(400):
        at = random_.randrange(used)
        damaged = bytearray(content[:at] if damage == "cut" else content)
        if damage == "flip":
            damaged[at] ^= 1 << random_.randrange(8)
        path.write_bytes(damaged)
        adoption = adopt(tmp_path, own, set())
        if adoption is None:
            assert is_of_another_version(path)
            continue
        taken = [adoption.take(1000), adoption.take(1000)]
        adoption.close()
        rows = [row for some, are_killed in taken if not are_killed for row in some]
        left = [row for some, are_killed in taken if are_killed for row in some]

        assert [row for row in rows if row not in good] == []
        assert [row[0] for row in rows] == sorted({row[0] for row in rows})
        assert all(row[END] == WORKER_KILLED and row[0] in range(40) for row in left)
    own.close(is_stored=True)


def test_journal_of_another_version_is_kept_and_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a downgrade, and while an upgrade rolls: who wrote it takes it over. Those of this version are taken."""
    own, newer, dead = Journal(tmp_path, 4), Journal(tmp_path, 4), Journal(tmp_path, 4)
    for journal in (newer, dead):
        note(journal, 1)
        abandon(journal)
    path = newer.segments[0].path
    content = path.read_bytes()
    path.write_bytes(content[:7] + b"2" + content[8:])
    left: set[Path] = set()

    for _ in range(3):
        adoption = adopt(tmp_path, own, left)
        if adoption is not None:
            adoption.done()

    assert path.exists()
    assert sorted(tmp_path.glob(f"*{LOCKS}")) == sorted(each.path.with_suffix(LOCKS) for each in (own, newer))
    assert [path.name.partition("-")[0] in message for message in caplog.messages] == [True]
    path.write_bytes(content)
    assert adopted(tmp_path, own) == ([values(1)], [])
    own.close(is_stored=True)


@pytest.mark.parametrize("size", [0, SEGMENT_BYTES])
def test_segment_that_was_being_made_is_no_damage(tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that is killed while it makes the next one has lost nothing, and nothing of the kind is said."""
    own, dead = Journal(tmp_path, 4), Journal(tmp_path, 4)
    note(dead, 1)
    abandon(dead)
    (tmp_path / f"{dead.worker:016x}-00000001{SEGMENTS}").write_bytes(bytes(size))

    rows, _ = adopted(tmp_path, own)

    assert [row[0] for row in rows] == [1]
    assert caplog.messages == []
    assert len(list(tmp_path.glob(f"*{SEGMENTS}"))) == 1
    own.close(is_stored=True)


def test_row_of_an_older_version_has_the_new_fields_defaults(tmp_path: Path) -> None:
    """A journal that was left before an upgrade is read after it."""
    journal, reading = Journal(tmp_path, 4), Reading()
    shorter = values(3)[: FIELDS.index("total_us")]
    journal.append(encode(shorter), RecordKind.CALL, 3)

    (row,) = reading.take(list(journal.segments), 10)

    assert [*row] == [*shorter, *msgspec.structs.astuple(Row(n=0, at_us=0))[len(shorter) :]]
    journal.close(is_stored=True)


def test_lock_has_its_name_only_once_it_is_held(tmp_path: Path) -> None:
    """A lock file that can be had is a dead worker's, even if it was made a moment ago."""
    journal = Journal(tmp_path, 4)
    (lock,) = tmp_path.glob(f"*{LOCKS}")
    os.unlink(lock)
    other = Journal(tmp_path, 4)

    assert adopt(tmp_path, other, set()) is None
    other.close(is_stored=True)
    journal.close(is_stored=True)


def test_folder_that_is_taken_away_is_made_anew(tmp_path: Path) -> None:
    """What was in it goes on being read; what is written later outlives the worker again."""
    folder = tmp_path / "journal"
    journal, reading = Journal(folder, 8), Reading()
    journal.provide()
    shutil.rmtree(folder)
    n = 0
    while len(journal.segments) < 3:
        assert note_large(journal, n)
        journal.provide()
        n += 1

    assert [row[0] for row in reading.take(list(journal.segments), 10**6)] == list(range(n))
    abandon(journal)
    other = Journal(folder, 8)
    rows, _ = adopted(folder, other)
    assert rows == [msgspec.structs.astuple(large(n - 1))]
    other.close(is_stored=True)
    assert list(folder.iterdir()) == []

"""Who drives batches: one process at a time, whatever becomes of the file that says so."""

from __future__ import annotations

from pathlib import Path

from gateway.batches.driver import _Lock


def test_lock_whose_file_is_taken_away_is_held_by_one(tmp_path: Path) -> None:
    """Somebody takes it for the leavings of a process that is gone: who drives goes on, and nobody else begins."""
    path = tmp_path / "driver.lock"
    first, second = _Lock(path), _Lock(path)
    assert (first.take(), second.take()) == (True, False)
    path.unlink()

    assert (first.take(), second.take()) == (True, False)
    first.release()
    second.release()


def test_who_was_too_late_drives_no_longer(tmp_path: Path) -> None:
    """Another one has made the file anew meanwhile, and gives it back later."""
    path = tmp_path / "driver.lock"
    first, second = _Lock(path), _Lock(path)
    assert first.take()
    path.unlink()
    assert second.take()

    assert (first.take(), second.take()) == (False, True)
    second.release()
    assert first.take()
    first.release()

"""Whatever a path names, reading it comes to an end: with what is in it, or with what is wrong with it."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from backends.plain_file import read_plain_file


def test_regular_file_is_read_also_through_links(tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap: a link to a file below a link to a folder that is swapped."""
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "policy.yaml").write_bytes(b"version: 1\n")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")

    assert read_plain_file(tmp_path / "policy.yaml", 100) == b"version: 1\n"


def test_large_file_is_read_no_further_than_shows_that_it_is(tmp_path: Path) -> None:
    """One byte more than is wanted, whatever the size."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(10 * 1024**3)

    assert len(read_plain_file(path, 100_000)) == 100_001


def test_pipe_of_a_command_is_read_to_its_end() -> None:
    """As a shell hands it over for `<(command)`: it comes in pieces, after a while."""
    command = ["sh", "-c", "sleep 0.05; printf 'version: '; sleep 0.05; echo 1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        content = read_plain_file(Path(f"/dev/fd/{process.stdout.fileno()}"), 100)

    assert content == b"version: 1\n"


def test_pipe_that_was_read_already_says_so() -> None:
    """A second reading finds nothing, and says what to do."""
    reader, writer = os.pipe()
    os.close(writer)
    with os.fdopen(reader), pytest.raises(OSError, match="once only, so save it in a file"):
        read_plain_file(Path(f"/dev/fd/{reader}"), 100)


@pytest.mark.timed
def test_fifo_without_a_writer_is_refused_at_once(tmp_path: Path) -> None:
    """Opening it the usual way would wait for ever."""
    os.mkfifo(tmp_path / "fifo")
    began = time.monotonic()

    with pytest.raises(OSError, match="a pipe with nothing in it"):
        read_plain_file(tmp_path / "fifo", 100)
    assert time.monotonic() - began < 1


def test_fifo_with_a_writer_is_read(tmp_path: Path) -> None:
    """Who writes in time is heard."""
    os.mkfifo(tmp_path / "fifo")
    descriptor = os.open(tmp_path / "fifo", os.O_RDWR)
    os.write(descriptor, b"version: 1\n")
    threading.Timer(0.05, os.close, (descriptor,)).start()

    assert read_plain_file(tmp_path / "fifo", 100) == b"version: 1\n"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A directory, a device that never ends, a socket."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path, kind in ((tmp_path, "directory"), (Path("/dev/zero"), "device"), (tmp_path / "socket", "socket")):
            with pytest.raises(OSError, match=f"it is a {kind}, not a file"):
                read_plain_file(path, 100)

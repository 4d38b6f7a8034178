"""Rows of a ledger as calls leave them, and a PostgreSQL of the test's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.ledger.row import SAVINGS, Beginning, Row

START_US = 1_793_000_000 * 10**6
"""A moment in October 2026."""


def sample_row(n: int, *, at_us: int | None = None, part: int = 0) -> Row:
    """A row like others: each number has its own tokens and amounts, some of them unknown, some negative."""
    cost = None if n % 11 == 0 else 3_000_000 + n % 97 * 1_000_003
    saved = None if cost is None else n % 7 * 1_000_001 - 2_000_000
    return Row(
        n=n,
        part=part,
        at_us=START_US + n * 250_000 if at_us is None else at_us,
        request_id=f"req_{n:012x}",
        key=f"key-{n % 20}",
        tenant=f"tenant-{n % 5}",
        user=f"user-{n % 50}",
        session=f"session-{n % 30}" if n % 3 else "",
        route="chat",
        operation="chat",
        backend=("up", "down")[n % 2],
        model=f"model-{n % 3}",
        served=f"model-{n % 3}-2026",
        stream=n % 2 == 0,
        cache=("miss", "hit")[n % 4 == 0],
        end="clean",
        status=500 if n % 13 == 0 else 200,
        input_tokens=100 + n % 900,
        cached_tokens=n % 100,
        output_tokens=n % 500,
        drafted_tokens=n % 40,
        accepted_tokens=n % 40 // 2,
        estimated=n % 17 == 0,
        cost=cost,
        list_cost=None if cost is None else 2 * cost,
        price="price-1",
        ttft_us=None if n % 2 else 90_000 + n % 1000,
        total_us=500_000 + n % 1000,
        in_slo=None if n % 3 else n % 2 == 0,
        **dict.fromkeys(SAVINGS, saved),
    )


def sample_beginning(n: int, held: int | None = None) -> Beginning:
    """How the call of that row begins, for which budgets hold so much."""
    return Beginning(
        n=n,
        at_us=START_US + n * 250_000,
        request_id=f"req_{n:012x}",
        key=f"key-{n % 20}",
        tenant=f"tenant-{n % 5}",
        user=f"user-{n % 50}",
        session=f"session-{n % 30}" if n % 3 else "",
        route="chat",
        operation="chat",
        model=f"model-{n % 3}",
        stream=n % 2 == 0,
        held=held,
    )


def postgres_folder() -> Path | None:
    """Where the programs of PostgreSQL are, if they are installed: Debian has them on no path."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


class Postgres:
    """A server on a socket in a folder of its own; `stop` and `start` are an outage."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._programs = programs
        self._port = _free_port()

    @property
    def url(self) -> str:
        """Of its only database."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Begin to serve."""
        settings = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self._run(
            "pg_ctl", "-D", str(self._folder / "data"), "-l", str(self._folder / "log"), "-w", "-o", settings, "start"
        )

    def stop(self) -> None:
        """End at once, as a machine that fails does."""
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "-w", "stop")

    def make(self) -> None:
        """Make the database. Who is called "locked" needs a password, all others need none."""
        self._run("initdb", "-D", str(self._folder / "data"), "-A", "trust", "-U", "postgres", "-N")
        rules = self._folder / "data" / "pg_hba.conf"
        # In place, for the file stays its owner's.
        with rules.open("r+") as file:
            others = file.read()
            file.seek(0)
            file.write(f"host all locked 127.0.0.1/32 scram-sha-256\n{others}")

    def _run(self, program: str, *arguments: str) -> None:
        # PostgreSQL refuses to be root.
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
        command = [*user, str(self._programs / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """One that serves; where PostgreSQL is not installed the test is skipped."""
    programs = postgres_folder()
    if programs is None:
        pytest.skip("PostgreSQL is not installed here")
    with tempfile.TemporaryDirectory(prefix="slipstream-postgres-") as made:
        folder = Path(made)
        if os.getuid() == 0:
            os.chown(folder, 65534, 65534)
        postgres = Postgres(folder, programs)
        postgres.make()
        postgres.start()
        try:
            yield postgres
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                postgres.stop()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port

"""Starts commands as forks of one process that has imported the gateway: two thirds of what a start costs are imports.

A fork is `slipstream` as its script runs it, with arguments, environment, folder and files of its own. Only what is
read while modules are imported is shared by all of them, so who tests that starts an interpreter of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]
_MAX_MESSAGE_BYTES = 1 << 17
_READ_AT_IMPORT = ("LD_", "PROMETHEUS_", "PYDANTIC_", "PYTHON", "TZ", "UVLOOP_")
"""How names of variables begin that an interpreter or a library reads before the command runs."""


class Fork:
    """A started command, with what tests use of `subprocess.Popen`."""

    def __init__(self, report: socket.socket) -> None:
        pid = report.recv(4)
        assert pid, "the process that forks has gone"
        self.pid = int.from_bytes(pid, "little")
        self.returncode: int | None = None
        self._report = report

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        self._read(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one. Raises: subprocess.TimeoutExpired."""
        self._read(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("slipstream", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout_s: float | None) -> None:
        if self.returncode is None:
            # A timeout of 0 would be an error where nothing is there yet, and so is one that has passed.
            self._report.settimeout(timeout_s)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                code = self._report.recv(4)
                assert code, "the process that forks has gone"
                self.returncode = int.from_bytes(code, "little", signed=True)
                self._report.close()


class Forks:
    """The process that forks, which ends with the one that made it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.servers.forks", str(theirs.fileno())],
                cwd=_ROOT,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    @staticmethod
    def can_start(environ: Mapping[str, str]) -> bool:
        """Whether a command gets from a fork all that these variables ask for."""
        own = {name: value for name, value in environ.items() if name.startswith(_READ_AT_IMPORT)}
        return hasattr(os, "pidfd_open") and all(os.environ.get(name) == value for name, value in own.items())

    def start(self, command: Sequence[str], environ: Mapping[str, str], stdout: int, stderr: int) -> Fork:
        """Start `command`, the path of the script and its arguments; it reads nothing."""
        report, theirs = socket.socketpair()
        told = json.dumps({"command": command, "environ": dict(environ), "folder": os.getcwd()}).encode()
        with theirs:
            socket.send_fds(self._control, [told], [theirs.fileno(), stdout, stderr])
        return Fork(report)


def _fork_as_told(control: socket.socket) -> dict[str, Any] | None:
    """Fork until nobody asks any more; returns in each fork too, with what it is told to do."""
    reports: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    selector.unregister(key.fileobj)
                    _report_end(key.data, *reports.pop(key.data))
                    continue
                told, files, _, _ = socket.recv_fds(control, _MAX_MESSAGE_BYTES, 3)
                if not told:
                    return None
                pid = os.fork()
                if pid == 0:
                    _let_go(control, reports.values())
                    _take_over(*files)
                    return dict(json.loads(told))
                report, *standards = files
                for file in standards:
                    os.close(file)
                reports[pid] = os.pidfd_open(pid), socket.socket(fileno=report)
                reports[pid][1].sendall(pid.to_bytes(4, "little"))
                selector.register(reports[pid][0], selectors.EVENT_READ, pid)


def _report_end(pid: int, pidfd: int, report: socket.socket) -> None:
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError), report:
        report.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))


def _let_go(control: socket.socket, reports: Iterable[tuple[int, socket.socket]]) -> None:
    """Of what belongs to the process that forks."""
    control.close()
    for pidfd, report in reports:
        os.close(pidfd)
        report.close()


def _take_over(report: int, stdout: int, stderr: int) -> None:
    """Write to these two from here on."""
    os.close(report)
    for standard, file in enumerate((stdout, stderr), start=1):
        os.dup2(file, standard)
        os.close(file)


def _become(told: dict[str, Any]) -> None:
    """What a new interpreter would have been given."""
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environ"])
    time.tzset()
    sys.argv = told["command"]
    # From here workers of the command learn which script they belong to.
    main = sys.modules["__main__"]
    main.__spec__ = None
    main.__file__ = sys.argv[0]


if __name__ == "__main__":
    from gateway.cli.main import cli

    importlib.import_module("gateway.cli.serve")
    gc.collect()
    gc.freeze()
    _told = _fork_as_told(socket.socket(fileno=int(sys.argv[1])))
    if _told is not None:
        _become(_told)
        sys.exit(cli())

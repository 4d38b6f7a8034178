"""The process and its workers: they end whole, they come back, nobody is left behind, and what happens is said."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.faults import CHAT, CaseServer, policy
from tests.support.gateway import Gateway, gateway_process, start_gateway
from tests.support.http_client import HttpClient, chat_body, request_bytes
from tests.support.plugin import plugin
from tests.support.servers.openai_server import Behaviour

TWO = ("--workers", "2")
SCRIPTED = Path(__file__).parents[2] / "policies" / "presets" / "scripted.yaml"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
SLOW_TO_OPEN = """
import asyncio, os, time
from backends.registry import Kind
from backends.scripted.script import Scripted, ScriptedConfig

class Slow(Scripted):
    async def open(self):
        await asyncio.to_thread(time.sleep, 60)

KIND = Kind(config=ScriptedConfig, build=Slow)
"""
WAIT_FOR = """
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.02)
"""
MINE = """
version: 1
backends: {mine: {type: mine}}
routes: [{name: all, match: {models: ["*"]}, backends: [{ref: mine}]}]
"""
CANNOT_START_AGAIN = """
import signal, sys, tempfile, threading
from pathlib import Path
from functools import partial
from socket import socket
from gateway.process.supervisor import DrainLimits, supervise

def run(flag, on_started):
    if flag.exists():
        raise SystemExit(3)
    flag.touch()
    on_started()
    threading.Event().wait(0.3)
    raise SystemExit(4)

if __name__ == "__main__":
    flag = Path(sys.argv[1])
    supervise(1, partial(run, flag), socket(), DrainLimits(0, 1), on_started=lambda: None, on_died=print)
"""


def workers_of(gateway: Gateway) -> list[int]:
    """Its worker processes: children that are not multiprocessing's resource tracker."""
    pid = gateway.process.pid
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        # One that has been killed may have gone by now.
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def is_there(pid: int) -> bool:
    """Whether that process lives."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False


def connect_error(port: int) -> int:
    """What a new connection comes to: 0 where there is one. Raises: TimeoutError where nothing comes for a second."""
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex(("127.0.0.1", port))


async def wait_refused(port: int, timeout_s: float) -> None:
    """Until new connections are refused. Raises: TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while await asyncio.to_thread(connect_error, port) != errno.ECONNREFUSED:
            await asyncio.sleep(0.01)


async def start_streams(gateway: Gateway, number: int) -> list[HttpClient]:
    """Streams of which each has begun."""
    clients = [await HttpClient.open(gateway.port) for _ in range(number)]
    for client in clients:
        client.send(request_bytes(CHAT, chat_body(stream=True)))
    for client in clients:
        await client.wait_body()
    return clients


def streams_for(seconds: float) -> Behaviour:
    """An upstream whose streams take so long."""
    return Behaviour(events=(*(EVENT,) * 20, END), event_delay_s=seconds / 20)


@pytest.mark.alone
@pytest.mark.timed
async def test_sigterm_finishes_the_streams_of_all_workers_and_refuses_new_ones_at_once() -> None:
    """Nobody listens any more while the streams run on: neither a worker nor the supervisor."""
    async with CaseServer() as server:
        server.default = streams_for(3.0)
        async with start_gateway(policy(server.base_url), args=TWO) as gateway:
            clients = await start_streams(gateway, 50)
            gateway.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            await wait_refused(gateway.port, 1.0)
            refused_after_s = time.monotonic() - began
            is_running = gateway.process.poll() is None
            answers = [await client.answer() for client in clients]
            code = await gateway.wait_exit()

    assert refused_after_s < 1
    assert is_running, "the streams were still going on"
    assert {(answer.is_whole, bytes(answer.body)) for answer in answers} == {(True, EVENT * 20 + END)}
    assert code == 0


async def test_drain_delay_of_workers_says_no_before_it_refuses() -> None:
    """For as long as load balancers get, /ready is 503 and calls are answered; then the port is closed."""
    environ = {"SLIPSTREAM_DRAIN_DELAY": "1s"}
    async with (
        start_gateway(SCRIPTED.read_text(encoding="utf-8"), args=TWO, environ=environ) as gateway,
        httpx.AsyncClient(base_url=gateway.url, verify=False) as client,
    ):
        gateway.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(0.8):
            while (await client.get("/ready")).status_code != 503:
                await asyncio.sleep(0.01)
        answer = await client.get("/health", headers={"connection": "close"})
        await wait_refused(gateway.port, 3.0)
        code = await gateway.wait_exit()

    assert answer.status_code == 200
    assert code == 0


async def test_workers_that_are_killed_one_after_the_other_are_replaced() -> None:
    """Right after the start, and again: calls are answered all the while, and the end is in order."""
    async with start_gateway(SCRIPTED.read_text(encoding="utf-8"), args=TWO) as gateway:
        statuses = []
        for _ in range(3):
            victim = workers_of(gateway)[0]
            os.kill(victim, signal.SIGKILL)
            await gateway.wait_stderr(f"worker {victim} (ended|could not start)", timeout_s=10)
            async with httpx.AsyncClient(base_url=gateway.url, verify=False, timeout=20) as client:
                answer = await client.post(CHAT, json={"model": "m", "messages": [{"role": "user", "content": "a"}]})
                statuses.append(answer.status_code)
        async with asyncio.timeout(20):
            while len(workers_of(gateway)) < 2:
                await asyncio.sleep(0.05)
        code = await gateway.terminate()

    assert statuses == [200] * 3
    assert code == 0


async def test_worker_that_cannot_start_leaves_the_other_one_serving() -> None:
    """The policy file is broken when it is replaced: it is tried again later, and there when the file is whole."""
    text = SCRIPTED.read_text(encoding="utf-8")
    async with start_gateway(text, args=TWO) as gateway:
        first = workers_of(gateway)
        gateway.write_policy("version: 2\n")
        os.kill(first[0], signal.SIGKILL)
        await gateway.wait_stderr("could not start", timeout_s=20)
        async with httpx.AsyncClient(base_url=gateway.url, verify=False) as client:
            during = await client.post(CHAT, json={"model": "m", "messages": [{"role": "user", "content": "a"}]})
        gateway.write_policy(text)
        async with asyncio.timeout(20):
            while len(set(workers_of(gateway)) - set(first)) < 1 or not all(map(is_there, workers_of(gateway))):
                await asyncio.sleep(0.05)
        code = await gateway.terminate()

    assert during.status_code == 200
    assert code == 0


def test_workers_that_never_start_again_end_the_supervisor(tmp_path: Path) -> None:
    """It gives up after some in a row where nobody else serves, with a word and a code."""
    script = tmp_path / "fleet.py"
    script.write_text(CANNOT_START_AGAIN, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, tmp_path / "flag"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )

    assert done.returncode == 1
    assert "workers cannot start: 5 have died before they served" in done.stderr
    assert done.stderr.count("could not start, it ended with 3") == 5


async def test_supervisor_that_is_killed_leaves_nobody_behind() -> None:
    """Its workers finish what they have, refuse what is new, and end; the port is free again."""
    async with CaseServer() as server:
        server.default = streams_for(1.5)
        async with start_gateway(policy(server.base_url), args=TWO) as gateway:
            workers = workers_of(gateway)
            clients = await start_streams(gateway, 8)
            gateway.process.kill()
            await gateway.wait_exit()
            await wait_refused(gateway.port, 2.0)
            answers = [await client.answer() for client in clients]
            async with asyncio.timeout(10):
                while any(map(is_there, workers)):
                    await asyncio.sleep(0.02)
            with socket.create_server(("127.0.0.1", gateway.port)):
                pass

    assert {answer.is_whole for answer in answers} == {True}


@pytest.mark.parametrize("args", [(), TWO], ids=["one", "workers"])
@pytest.mark.timed
async def test_ctrl_c_finishes_streams_and_says_so_and_a_second_one_cuts_them(args: tuple[str, ...]) -> None:
    """As from a terminal, which tells every process: the first waits, the second ends at once without a traceback."""
    async with CaseServer() as server:
        server.default = streams_for(30.0)
        async with start_gateway(policy(server.base_url), args=args) as gateway:
            pids = [gateway.process.pid, *workers_of(gateway)]
            clients = await start_streams(gateway, 1)
            # A terminal tells all of them at once. One by one, a supervisor that is told first may tell its workers to
            # stop before their own Ctrl-C comes, which is the second word then.
            for pid in reversed(pids):
                os.kill(pid, signal.SIGINT)
            await gateway.wait_stderr("finishing 1 request, for at most 60 s; Ctrl-C again to stop at once")
            await asyncio.sleep(0.5)
            is_running = gateway.process.poll() is None
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
            began = time.monotonic()
            code = await gateway.wait_exit()
            took_s = time.monotonic() - began
            answer = await clients[0].answer()

            assert is_running
            assert not answer.is_whole
            assert took_s < 3
            assert code == 130
            assert "stopped at once" in gateway.stderr
            assert "Traceback" not in gateway.stderr
            assert not any(map(is_there, pids))


@pytest.mark.parametrize("args", [(), TWO], ids=["one", "workers"])
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.timed
async def test_signal_during_the_start_ends_it_at_once(args: tuple[str, ...], sig: signal.Signals) -> None:
    """A model that is being loaded is not waited for, and Python says nothing of its own."""
    with plugin(SLOW_TO_OPEN) as environ, gateway_process(MINE, args=args, environ=environ) as gateway:
        num_processes = len(args) + 1
        async with asyncio.timeout(30):
            while not _is_loading(gateway, num_processes):
                await asyncio.sleep(0.05)
        pids = [gateway.process.pid, *workers_of(gateway)]
        for pid in pids if sig == signal.SIGINT else pids[:1]:
            os.kill(pid, sig)
        began = time.monotonic()
        code = await gateway.wait_exit()

        assert time.monotonic() - began < 3
        assert code == 128 + sig
        assert "Traceback" not in gateway.stderr
        assert not any(map(is_there, pids))


@pytest.mark.parametrize("args", [(), TWO], ids=["one", "workers"])
async def test_sighup_during_the_start_is_a_reload_afterwards(args: tuple[str, ...], tmp_path: Path) -> None:
    """Whoever is told, and however early: nobody ends of it."""
    go = tmp_path / "go"
    slow = SLOW_TO_OPEN.replace("time.sleep, 60", f"wait_for, {str(go)!r}") + WAIT_FOR
    with plugin(slow) as environ, gateway_process(MINE, args=args, environ=environ) as gateway:
        num_processes = len(args) + 1
        async with asyncio.timeout(30):
            while not _holds_sighup(gateway.process.pid):
                await asyncio.sleep(0.005)
        gateway.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(30):
            while not _is_loading(gateway, num_processes):
                await asyncio.sleep(0.05)
                gateway.process.send_signal(signal.SIGHUP)
        gateway.process.send_signal(signal.SIGHUP)
        go.touch()
        async with asyncio.timeout(30):
            while not gateway.has_started():
                await asyncio.sleep(0.05)
        await gateway.wait_stderr("is in force")

        assert await gateway.terminate() == 0
        assert "could not start" not in gateway.stderr


async def test_sighup_while_a_worker_is_replaced_ends_nobody() -> None:
    """It comes again and again, from before the new process is there until it serves."""
    text = SCRIPTED.read_text(encoding="utf-8")
    async with start_gateway(text, args=TWO) as gateway:
        before = workers_of(gateway)
        os.kill(before[0], signal.SIGKILL)
        async with asyncio.timeout(30):
            while not (new := set(workers_of(gateway)) - set(before)) or not _takes_sighup(new.pop()):
                gateway.process.send_signal(signal.SIGHUP)
                await asyncio.sleep(0.02)
        code = await gateway.terminate()

        assert code == 0
        assert "could not start" not in gateway.stderr
        assert gateway.stderr.count("ended with") == 1


def _holds_sighup(pid: int) -> bool:
    """Whether SIGHUP waits there."""
    return _has_sighup(pid, "SigBlk:")


def _takes_sighup(pid: int) -> bool:
    """Whether it comes to a handler there."""
    return _has_sighup(pid, "SigCgt:") and not _holds_sighup(pid)


def _has_sighup(pid: int, signals: str) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return bool(int(status.partition(signals)[2].split()[0], 16) >> (signal.SIGHUP - 1) & 1)


def _is_loading(gateway: Gateway, num_processes: int) -> bool:
    """Whether every process that serves later has a thread that loads."""
    serving = [gateway.process.pid] if num_processes == 1 else workers_of(gateway)
    threads = [len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in serving]
    return len(threads) == max(1, num_processes - 1) and min(threads) >= (2 if num_processes == 1 else 3)

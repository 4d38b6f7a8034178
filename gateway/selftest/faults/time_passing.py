"""Faults 31 and 33: what grows with time, and a wall clock that jumps."""

from __future__ import annotations

import time

from gateway.selftest.answers import chat_pieces
from gateway.selftest.bench import Bench, ask_way, at_once
from gateway.selftest.check import Check
from gateway.selftest.run import CHAT, Child
from gateway.selftest.subject import ChatRoute
from gateway.selftest.upstream import Lie, ReceivedRequest
from gateway.selftest.verdict import CheckOutcome, failed, partial, passed, skipped

_BUG = "report it: this is a bug of the gateway, not of your policy"
_MIB = 1024**2
_JUMPING = """
import time
_true_time, _true_time_ns = time.time, time.time_ns
def _jump():
    try:
        with open({place!r}) as file:
            return float(file.read() or 0)
    except (OSError, ValueError):
        return 0.0
time.time = lambda: _true_time() + _jump()
time.time_ns = lambda: _true_time_ns() + int(_jump() * 1e9)
"""
"""Makes the wall clock of a process differ by what a file says; its monotonic clock goes on."""


async def soak(bench: Bench) -> CheckOutcome:
    """Unique prompts, errors and clients that leave, again and again: memory and sockets settle."""
    way = bench.subject.way
    seconds = bench.count(4, 60)

    def lie(request: ReceivedRequest) -> Lie:
        chance = bench.random.random()
        if chance < 0.1:
            return Lie(status=500)
        if chance < 0.2:
            return Lie(pieces=chat_pieces(), stop_after=2)
        return Lie()

    # A cache may fill up to its bound, which is not what this is about.
    policy = bench.policy(way, cache=None)
    async with bench.gateway(policy) as child:
        for upstream in bench.own.values():
            upstream.plan = lie
        await _use(child, bench, way, seconds / 3)
        before, files = child.memory_bytes(), child.num_files()
        num_calls = await _use(child, bench, way, 2 * seconds / 3)
        await bench.sleep(0.5)
        after, files_after = child.memory_bytes(), child.num_files()
    if before is None or after is None or files is None or files_after is None:
        return skipped("this system does not tell how much memory a process holds")
    grown = (after - before) / max(1, num_calls)
    measured = f"{(after - before) / _MIB:+.1f} MiB, {files_after - files:+} files, {num_calls} calls"
    shortened = f"shortened: {seconds} s, not 24 h"
    if files_after - files > 50:
        return failed(measured, "sockets are not closed", _BUG)
    if grown > 16 * 1024 and after - before > 16 * _MIB:
        return failed(measured, "memory grows with every call", _BUG)
    if after - before > 8 * _MIB:
        return partial(measured, f"over 8 MiB while warming up; {shortened}", "watch process_resident_memory_bytes")
    return passed(measured, shortened)


async def _use(child: Child, bench: Bench, way: ChatRoute, seconds: float) -> int:
    """Calls of every kind for so long; how many."""
    until = time.monotonic() + seconds
    num_calls = 0

    async def worker(own: int) -> None:
        nonlocal num_calls
        while time.monotonic() < until:
            num_calls += 1
            text = f"soak {own} {num_calls} {bench.random.random()}"
            if num_calls % 7 == 0:
                await child.ask(CHAT, b"{", key=f"sk-{text}")
            elif num_calls % 5 == 0:
                client = await child.connect()
                client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 90\r\n\r\n{")
                client.reset()
            else:
                await ask_way(child, way, text, stream=num_calls % 2 == 0)

    await at_once(6, [worker(own) for own in range(6)])
    return num_calls


async def clock_jumps(bench: Bench) -> CheckOutcome:
    """The wall clock jumps an hour ahead and two back: limits, stored answers and calls go on."""
    way = bench.subject.way
    place = bench.new_folder("clock") / "jump"
    place.write_text("0", encoding="utf-8")
    wrong: list[str] = []
    misdated: list[str] = []
    jumps = (0, 3600, -3600, 3600, 0)
    cache = {"scope": "tenant", "exact": {"ttl": "30m"}}
    async with bench.gateway(bench.policy(way, cache=cache), first=_JUMPING.format(place=str(place))) as child:
        await ask_way(child, way, "before the jump", temperature=0)
        for number, jump in enumerate(jumps):
            place.write_text(str(jump), encoding="utf-8")
            began = time.monotonic()
            answer = await ask_way(child, way, f"jump {number}", temperature=0)
            if not answer.is_good or time.monotonic() - began > 2:
                wrong.append(f"a call at {jump:+} s: {answer.status}")
            requests_before = bench.num_requests()
            stored = await ask_way(child, way, "before the jump", temperature=0)
            if bench.num_requests() > requests_before:
                wrong.append(f"at {jump:+} s an answer of this minute counts as too old")
            age = stored.header("age")
            if age and not 0 <= float(age) <= 60:
                misdated.append(f"{age} at {jump:+} s")
        if (await child.ask("/ready")).status != 200:
            wrong.append("it is not ready")
    measured = f"{len(wrong) + len(misdated)} anomalies in {len(jumps)} jumps"
    if wrong:
        return failed(measured, "; ".join(wrong[:3]), _BUG)
    if misdated:
        return partial(measured, f"only the header `age` of stored answers follows the clock: {', '.join(misdated)}")
    return passed(measured)


CHECKS = (
    Check("31", "unique prompts, errors, disconnects: flat memory", soak),
    Check("33", "the wall clock jumps: limits and ages are right", clock_jumps),
)

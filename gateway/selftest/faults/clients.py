"""Fault 6: clients that leave in the middle of an answer, and clients that hardly read."""

from __future__ import annotations

import json
import time

from gateway.selftest.answers import chat_pieces, chunk
from gateway.selftest.bench import Bench, at_once, chat, quantile
from gateway.selftest.check import Check
from gateway.selftest.client import request_bytes
from gateway.selftest.run import CHAT, Child
from gateway.selftest.subject import ChatRoute
from gateway.selftest.upstream import Lie
from gateway.selftest.verdict import CheckOutcome, failed, partial, passed

_KIB = 1024
_MAX_STREAM_BYTES = 256 * _KIB
_BUG = "report it: this is a bug of the gateway, not of your policy"


async def leaving(bench: Bench) -> CheckOutcome:
    """A client leaves after event k: its upstream call ends. A client does not read: memory stays bounded."""
    way = bench.subject.way
    count = bench.count(12, 200)
    async with bench.gateway(bench.policy(way, cache=None)) as child:
        waits = await _leave(bench, child, way, count)
        held = await _read_nothing(bench, child, way, bench.count(8, 32))
    late = quantile(waits, 0.99)
    measured = f"cancelled in {1000 * late:.0f} ms p99"
    if held is not None:
        measured += f"; {held / _KIB:.0f} KiB each"
    if len(waits) < count:
        return failed(measured, f"{count - len(waits)} upstream calls went on for 5 s without a client", _BUG)
    if held is not None and held > 4 * _MAX_STREAM_BYTES:
        return failed(measured, "an upstream is read faster than its client takes it", _BUG)
    if late > 0.1 or (held or 0) > _MAX_STREAM_BYTES:
        return partial(measured, "over 100 ms or 256 KiB; is this machine busy?")
    return passed(measured)


async def _leave(bench: Bench, child: Child, way: ChatRoute, count: int) -> list[float]:
    """Seconds from leaving to the upstream's seeing it; calls that were not cancelled are left out."""
    waits: list[float] = []
    for upstream in bench.all_of(way):
        upstream.usual = Lie(pieces=chat_pieces(["word "] * 500), pause_s=0.02)

    async def once(number: int) -> None:
        text = f"leaving {number}"
        client = await child.connect()
        fields = [("authorization", f"Bearer {way.secret}"), *way.headers]
        client.send(request_bytes(CHAT, json.dumps(chat(text, way.model, stream=True)).encode(), fields))
        await client.wait(lambda: client.current.body.count(b"data:") > number % 12)
        client.reset()
        left = time.monotonic()
        request = next(a for upstream in bench.all_of(way) for a in upstream.requests if text.encode() in a.body)
        try:
            waits.append(max(0.0, await request.wait_gone(5.0) - left))
        except TimeoutError:
            return

    await at_once(4, [once(number) for number in range(count)])
    return waits


async def _read_nothing(bench: Bench, child: Child, way: ChatRoute, count: int) -> float | None:
    """Bytes that the gateway holds for each client that stops reading; None where the system does not tell."""
    large = (chunk({"role": "assistant", "content": ""}), *(chunk({"content": "x" * 65536}) for _ in range(200)))
    for upstream in bench.all_of(way):
        upstream.usual = Lie(pieces=large)
    before = child.memory_bytes()
    fields = [("authorization", f"Bearer {way.secret}"), *way.headers]
    clients = []
    for number in range(count):
        client = await child.connect(receive_buffer=4096)
        client.send(request_bytes(CHAT, json.dumps(chat(f"slow {number}", way.model, stream=True)).encode(), fields))
        clients.append(client)
    for client in clients:
        await client.wait_body()
        client.stop_reading()
    await _until_quiet(bench, way)
    after = child.memory_bytes()
    for client in clients:
        client.reset()
    return None if before is None or after is None else max(0, after - before) / count


async def _until_quiet(bench: Bench, way: ChatRoute) -> None:
    """Until the upstreams cannot get rid of any more."""
    sent = -1
    while sent != (now := sum(a.num_pieces for upstream in bench.all_of(way) for a in upstream.requests)):
        sent = now
        await bench.sleep(0.3)


CHECKS = (Check("6", "clients that leave, or do not read", leaving, is_timed=True),)

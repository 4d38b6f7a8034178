"""Faults 24 and 25: bodies and heads as no good client sends them. All of it needs nothing but requests."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from dataclasses import dataclass

from gateway.selftest.bench import Bench, GatewayTarget, target_of
from gateway.selftest.check import Check
from gateway.selftest.client import Client, ReceivedAnswer, request_bytes
from gateway.selftest.run import CHAT
from gateway.selftest.verdict import CheckOutcome, failed, partial, passed

_BUG = "report it: this is a bug of the gateway, not of your policy"
_MIB = 1024**2
_MAX_STALL_S = 0.05
_MAX_SOCKET_BYTES = 200 * _MIB / 10_000


def _hostile(model: str) -> dict[str, bytes]:
    """Bodies of which each has to be refused, by name."""
    message = b'{"model":"%b","messages":[{"role":"user","content":%%b}]}' % model.encode()
    deep = b"[" * 100_000 + b"]" * 100_000
    return {
        "empty": b"",
        "null": b"null",
        "a list": b"[]",
        "a text": b'"chat"',
        "half of it": message[:30],
        "NaN": b'{"model":"%b","temperature":NaN,"messages":[]}' % model.encode(),
        "100,000 deep": b'{"model":"%b","messages":%b}' % (model.encode(), deep),
        "invalid UTF-8": message % b'"\xff\xfe"',
        "a raw NUL": message % b'"a\x00b"',
        "model is a number": b'{"model":7,"messages":[]}',
        "gzip bomb": gzip.compress(b" " * (10 * _MIB)),
        "form data": b"model=x&messages=y",
        "two documents": (message % b'"a"') * 2,
    }


async def bodies_own(bench: Bench) -> CheckOutcome:
    """On the copied policy."""
    async with bench.gateway() as child:
        return await bodies(target_of(child, bench.subject.way, is_quick=bench.is_quick))


async def bodies(target: GatewayTarget) -> CheckOutcome:
    """Hostile bodies: 4xx in OpenAI's shape, bounded memory, and nobody else waits for it."""
    wrong: list[str] = []
    before = target.child.memory_bytes() if target.child is not None else None
    lines = b'"' + b"x" * (8 * _MIB) + b'"'
    large = b'{"model":"%b","messages":[{"role":"user","content":%b}]}' % (target.model.encode(), lines)
    async with asyncio.TaskGroup() as group:
        stop = asyncio.Event()
        watched = group.create_task(_longest_wait(target, stop))
        for name, body in _hostile(target.model).items():
            fields = [("content-encoding", "gzip")] if name == "gzip bomb" else []
            if name == "form data":
                fields.append(("content-type", "application/x-www-form-urlencoded"))
            answer = await _send(target, body, fields)
            if not 400 <= answer.status < 500 or answer.error() is None:
                wrong.append(f"{name}: {answer.status}")
        for _ in range(2 if target.is_quick else 10):
            await _send(target, large, [])
        too_large = await _announce(target, 100 * _MIB)
        stop.set()
    if too_large.status != 413:
        wrong.append(f"100 MiB announced: {too_large.status}")
    good = await target.chat("after hostile bodies")
    after = target.child.memory_bytes() if target.child is not None else None
    stall = watched.result()
    measured = f"{len(wrong)} let in; others wait {1000 * stall:.0f} ms"
    if before is not None and after is not None:
        measured += f"; {(after - before) / _MIB:+.0f} MiB"
    if wrong:
        return failed(measured, f"not refused as it should be: {', '.join(wrong[:6])}", _BUG)
    if good.status >= 500:
        return failed(measured, f"a good call afterwards is answered with {good.status}", _BUG)
    if stall > 2.0:
        return failed(measured, "one client's body keeps all others waiting", _BUG)
    if stall > _MAX_STALL_S:
        return partial(measured, "others wait over 50 ms; is this machine busy?", "lower SLIPSTREAM_MAX_BODY")
    return passed(measured)


async def _longest_wait(target: GatewayTarget, stop: asyncio.Event) -> float:
    """The longest that a small request of somebody else took until `stop`."""
    longest = 0.0
    client = await Client.open(target.address)
    while not stop.is_set():
        began = time.monotonic()
        client.send(request_bytes(f"{target.address.prefix}/health", method="GET"))
        await client.answer()
        longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(0.005)
    client.close()
    return longest


async def _send(target: GatewayTarget, body: bytes, fields: list[tuple[str, str]]) -> ReceivedAnswer:
    return await _raw(target, request_bytes(target.address.prefix + CHAT, body, [*_fields(target), *fields]))


async def _announce(target: GatewayTarget, length: int) -> ReceivedAnswer:
    """A body that is announced and never sent."""
    lines = [
        f"POST {target.address.prefix}{CHAT} HTTP/1.1",
        "host: localhost",
        f"content-length: {length}",
    ]
    lines += [f"{name}: {value}" for name, value in _fields(target)]
    return await _raw(target, "\r\n".join([*lines, "", "{"]).encode(), timeout_s=5.0)


async def _raw(target: GatewayTarget, data: bytes, timeout_s: float = 15.0) -> ReceivedAnswer:
    client = await Client.open(target.address)
    try:
        client.send(data)
        return await client.answer(timeout_s)
    except TimeoutError:
        return ReceivedAnswer()
    finally:
        client.close()


def _fields(target: GatewayTarget) -> list[tuple[str, str]]:
    key = [("authorization", f"Bearer {target.key}")] if target.key else []
    return [*key, *target.headers]


@dataclass(frozen=True, slots=True)
class _Smuggling:
    """A head that two parsers may read differently. `tail` would be a second request to one of them."""

    name: str
    fields: tuple[str, ...]
    tail: bytes = b""
    has_late_key: bool = False
    """Instead of `tail`: a good body whose key is a trailer."""


_INNER = b"GET /v1/smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n"
_VARIANTS = (
    _Smuggling("CL and TE", ("content-length: 6", "transfer-encoding: chunked"), b"0\r\n\r\n" + _INNER),
    _Smuggling("two lengths", ("content-length: 2", f"content-length: {2 + len(_INNER)}"), b"{}" + _INNER),
    _Smuggling("length +2", ("content-length: +2",), b"{}" + _INNER),
    _Smuggling("length 0x2", ("content-length: 0x2",), b"{}" + _INNER),
    _Smuggling("length -1", ("content-length: -1",), b"{}" + _INNER),
    _Smuggling("TE xchunked", ("transfer-encoding: xchunked",), b"0\r\n\r\n" + _INNER),
    _Smuggling("TE chunked twice", ("transfer-encoding: chunked", "transfer-encoding: chunked"), b"0\r\n\r\n" + _INNER),
    _Smuggling("TE, blank before colon", ("transfer-encoding : chunked",), b"0\r\n\r\n" + _INNER),
    _Smuggling("bad chunk size", ("transfer-encoding: chunked",), b"zz\r\n{}\r\n0\r\n\r\n" + _INNER),
    _Smuggling("folded field", ("content-length: 2", "x-a: b\r\n c"), b"{}"),
    _Smuggling("NUL in a field", ("content-length: 2", "x-a: b\0c"), b"{}"),
    _Smuggling("bare CR", ("content-length: 2", "x-a: b\rc: d"), b"{}"),
    _Smuggling("65 KiB of head", ("content-length: 2", "x-a: " + "b" * 66_560), b"{}"),
    _Smuggling("no length", (), _INNER),
    _Smuggling("authorization as a trailer", ("transfer-encoding: chunked",), has_late_key=True),
)


async def smuggling_own(bench: Bench) -> CheckOutcome:
    """On the copied policy: its upstreams see whether anything came through twice."""
    async with bench.gateway() as child:
        outcome = await smuggling(target_of(child, bench.subject.way, is_quick=bench.is_quick))
    seen = [request for upstream in bench.own.values() for request in upstream.requests if "smuggled" in request.path]
    return failed(outcome.measured, "a request hidden in another one reached the upstream", _BUG) if seen else outcome


async def smuggling(target: GatewayTarget) -> CheckOutcome:
    """Heads that two parsers read differently: one request and one answer at most; idle sockets cost little."""
    wrong: list[str] = []
    for variant in _VARIANTS:
        statuses = await _statuses(target, variant)
        is_let_in = variant.has_late_key and bool(target.key) and statuses[:1] == [200]
        if is_let_in or 200 in statuses[1:] or (statuses and statuses[0] >= 500):
            wrong.append(f"{variant.name}: {statuses}")
    count = 300 if target.is_quick else 3000
    each = await _idle(target, count)
    measured = f"{len(wrong)} of {len(_VARIANTS)} came through"
    if each is not None:
        measured += f"; {each / 1024:.0f} KiB a socket"
    if wrong:
        return failed(measured, "; ".join(wrong[:4]), _BUG)
    if each is not None and each > 3 * _MAX_SOCKET_BYTES:
        return failed(measured, "10,000 sockets that send half a head cost over 600 MiB", _BUG)
    if each is not None and each > _MAX_SOCKET_BYTES:
        return partial(measured, "10,000 sockets that send half a head would cost over 200 MiB")
    return passed(measured, f"{count} sockets, not 10,000")


async def _statuses(target: GatewayTarget, variant: _Smuggling) -> list[int]:
    """The statuses of all answers on one connection."""
    fields = [f"{name}: {value}" for name, value in _fields(target)]
    tail = variant.tail
    if variant.has_late_key:
        body = json.dumps({"model": target.model, "messages": [{"role": "user", "content": "trailer"}]}).encode()
        fields = [field for field in fields if not field.startswith("authorization")]
        tail = b"%x\r\n%b\r\n0\r\nauthorization: Bearer %b\r\n\r\n" % (len(body), body, target.key.encode())
    lines = [f"POST {target.address.prefix}{CHAT} HTTP/1.1", "host: localhost", *fields, *variant.fields]
    reader, writer = await asyncio.open_connection(target.address.host, target.address.port)
    received = b""
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + tail)
        async with asyncio.timeout(0.4):
            while piece := await reader.read(65536):
                received += piece
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()
    parts = received.split(b"HTTP/1.1 ")[1:]
    return [int(part[:3]) for part in parts if part[:3].isdigit()]


async def _idle(target: GatewayTarget, count: int) -> float | None:
    """Bytes of memory for each socket that sends half a head and no more."""
    if target.child is None:
        return None
    before = target.child.memory_bytes()
    clients = []
    try:
        for _ in range(count):
            client = await Client.open(target.address)
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n")
            clients.append(client)
    except OSError:
        # So many files are open here as may be.
        count = max(1, len(clients))
    await target.ask("/health")
    after = target.child.memory_bytes()
    for client in clients:
        client.reset()
    return None if before is None or after is None else max(0, after - before) / count


CHECKS = (
    Check("24", "hostile bodies: refused, bounded, nobody waits", bodies_own, bodies, is_timed=True),
    Check("25", "smuggling, odd heads, idle sockets: refused", smuggling_own, smuggling),
)

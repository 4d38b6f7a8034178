"""What balancing, limits and admission add to a request of 2 KB: CPU microseconds of a gateway in a process of its own.

    python -m tests.benchmarks.request_cost

One gateway has a route for each way; they are asked in turns, some hundred requests at a time over the same sixteen
connections, so that all of them meet the same moments of a machine that is shared. What a way costs is told beside the
first one in the neighbouring turn, the median over all rounds, in the microseconds of the first one's calmest tenth.
The upstream answers at once, whole or as a short stream, and never sleeps: to wake it would be the gateway's cost. A
balanced route has two backends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import operator
import re
import statistics
from pathlib import Path

import msgspec

from gateway.simulate.figures import Figure
from tests.support.gateway import Gateway, start_gateway

_MOST_US = 20.0
_CONNECTIONS = 16
_WAYS = {
    "one backend": ("up", ""),
    "two in turns": ("up, other", "    routing: {policy: round_robin}\n"),
    "balanced": ("up, other", "    routing: {policy: predicted_cost}\n"),
    "with limits": ("up, other", "    routing: {policy: predicted_cost}\n    slo: {}\n"),
    "with admission": ("up, other", "    routing: {policy: predicted_cost}\n    slo: {}\n    admission: {}\n"),
}
_USAGE = {"prompt_tokens": 400, "completion_tokens": 64, "total_tokens": 464}
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def _policy(port: int) -> str:
    lines = ["version: 1\n", "backends:\n"]
    routes = ["routes:\n"]
    for place, (names, extra) in enumerate(_WAYS.values()):
        # Each route has backends of its own, so that nobody counts what another's calls do.
        own = [f"{name}-{place}" for name in names.split(", ")]
        lines += [f'  {name}: {{type: openai, base_url: "http://127.0.0.1:{port}/v1"}}\n' for name in own]
        refs = ", ".join(f"{{ref: {name}}}" for name in own)
        routes.append(f'  - name: r{place}\n    match: {{models: ["m{place}"]}}\n    backends: [{refs}]\n{extra}')
    return "".join((*lines, *routes))


class _Upstream(asyncio.Protocol):
    """Answers every request with the same bytes, whole or streamed."""

    _whole: bytes
    _stream: bytes

    def __init__(self) -> None:
        message = {"role": "assistant", "content": "word " * 64}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        body = json.dumps({**chunk, "choices": [{"index": 0, "message": message}], "usage": _USAGE}).encode()
        self._whole = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        words = [{**chunk, "choices": [{"index": 0, "delta": {"content": "word "}}]} for _ in range(8)]
        events = [json.dumps(each) for each in (*words, {**chunk, "choices": [], "usage": _USAGE})]
        data = "".join(f"data: {event}\n\n" for event in (*events, "[DONE]")).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._stream = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = self._read.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and length is not None and len(body) >= int(length[1]):
            self._read = b""
            self._transport.write(self._stream if b'"stream": true' in body else self._whole)


class _Client(asyncio.Protocol):
    """Asks again as soon as it has its answer, as long as the turn has requests left."""

    def __init__(self) -> None:
        self.turn: _Turn | None = None
        self._read = bytearray()
        self._whole = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, turn: _Turn) -> None:
        self.turn = turn
        self._transport.write(turn.request)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = self._read.partition(b"\r\n\r\n")
        if not end:
            return
        assert head.startswith(b"HTTP/1.1 200"), f"the gateway said {bytes(self._read[:500])!r}"
        length = _LENGTH.search(head)
        if len(body) >= int(length[1]) if length is not None else body.endswith(b"0\r\n\r\n"):
            self._read.clear()
            assert self.turn is not None, "an answer to nothing"
            self.turn.answered(self)


class _Turn:
    """Some requests of one way, to be answered by all connections together."""

    def __init__(self, request: bytes, number: int) -> None:
        self.request = request
        self._to_ask = number
        self._to_come = number
        self._done = asyncio.get_running_loop().create_future()

    def answered(self, client: _Client) -> None:
        self._to_come -= 1
        if self._to_ask:
            self._to_ask -= 1
            client.ask(self)
        elif not self._to_come:
            self._done.set_result(None)

    async def take(self, clients: list[_Client]) -> None:
        self._to_ask -= len(clients)
        for client in clients:
            client.ask(self)
        await self._done


def _request(place: int, *, stream: bool) -> bytes:
    text = " ".join(f"word{number}" for number in range(48))
    roles = ("system", "user", "assistant", "user", "assistant", "user")
    messages = [{"role": role, "content": f"{role} {place} {text[:310]}"} for role in roles]
    body = {"model": f"m{place}", "messages": messages, "temperature": 0.7, "max_tokens": 128, "stream": stream}
    raw = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        f"accept: */*\r\nuser-agent: benchmark\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


def _stay_awake() -> None:
    """Keeps the loop from sleeping."""
    asyncio.get_running_loop().call_soon(_stay_awake)


async def _measure(gateway: Gateway, rounds: int, size: int, *, stream: bool) -> dict[str, list[float]]:
    """By way the microseconds of CPU that a request took, in every round."""
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(_CONNECTIONS):
        _, client = await loop.create_connection(_Client, "127.0.0.1", gateway.port)
        clients.append(client)
    requests = {way: _request(place, stream=stream) for place, way in enumerate(_WAYS)}
    took: dict[str, list[float]] = {way: [] for way in _WAYS}
    for number in range(rounds + 5):
        for way, request in requests.items():
            before_us = _cpu_us(gateway.process.pid)
            await _Turn(request, size).take(clients)
            if number >= 5:
                took[way].append((_cpu_us(gateway.process.pid) - before_us) / size)
    return took


async def _compare(rounds: int, size: int) -> dict[str, dict[str, list[float]]]:
    loop = asyncio.get_running_loop()
    async with await loop.create_server(_Upstream, "127.0.0.1", 0) as server:
        _stay_awake()
        async with start_gateway(_policy(server.sockets[0].getsockname()[1])) as gateway:
            return {
                "whole": await _measure(gateway, rounds, size, stream=False),
                "streamed": await _measure(gateway, rounds, size, stream=True),
            }


def _cpu_us(pid: int) -> float:
    """What all threads of a process have taken of a processor; Linux only."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e3


def main() -> None:
    """Prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--size", type=int, default=320, help="requests a turn")
    parser.add_argument("--json", type=Path, help="write the figure there, for `slipstream bench policies`")
    options = parser.parse_args()
    took = asyncio.run(_compare(options.rounds, options.size))
    added: dict[str, float] = {}
    first = next(iter(_WAYS))
    for kind, ways in took.items():
        calm_us = statistics.quantiles(ways[first], n=10)[0]
        print(f"{kind} answers, CPU us a request in a calm moment; times that of {first}, quartiles")
        for way, each in ways.items():
            low, middle, high = statistics.quantiles(map(operator.truediv, each, ways[first]), n=4)
            added[kind] = calm_us * (middle - 1)
            print(f"  {way:16} {calm_us * middle:6.1f}  +{added[kind]:4.1f}   {middle:.2f} ({low:.2f} to {high:.2f})")
    if options.json is not None:
        figure = Figure(
            "what balancing, limits and admission add to a request of 2 KB",
            f"<= {_MOST_US:.0f} us of CPU",
            f"{added['whole']:.0f} us",
            note=f"{added['streamed']:.0f} us where the answer is streamed; times depend on the machine",
        )
        options.json.write_bytes(msgspec.json.encode([figure]))


if __name__ == "__main__":
    main()

"""CPU microseconds of one exchange, and of one streamed piece: our transport against httpx's own, on loopback.

    python -m tests.benchmarks.gateway.transport_cost --rounds 5

Counts the processor time of the client alone: the upstream is a process of its own. The least of all rounds is what a
busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe

import httpx
import uvloop

from backends.clock import SystemClock
from backends.http.transport import HttpWire, Transport
from tests.support.servers.raw_server import Peer, RawServer, generous

_BODY = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"x" * 2000)
_LARGE_BODY = _BODY.replace(b"x" * 2000, b"x" * 51_200)
_HEADERS = [(b"content-type", b"application/json"), (b"authorization", b"Bearer secret"), (b"accept", b"*/*")]
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 600\r\n\r\n" + b"x" * 600
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = b"c8\r\n" + b"x" * 200 + b"\r\n"
_EVENTS = 100
_CONCURRENCY = 16


async def _serve(peer: Peer) -> None:
    while True:
        target = (await peer.request()).head.split(b" ", 2)[1]
        if target == b"/whole":
            peer.send(_WHOLE)
        elif target == b"/burst":
            peer.send(_STREAM_HEAD + _EVENT * _EVENTS + b"0\r\n\r\n")
        else:
            peer.send(_STREAM_HEAD)
            for _ in range(_EVENTS):
                await asyncio.sleep(0.002)
                peer.send(_EVENT)
            peer.send(b"0\r\n\r\n")


def _run_upstream(pipe: Pipe) -> None:
    async def main() -> None:
        async with RawServer(_serve) as server:
            pipe.send(server.base_url)
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    uvloop.run(main())


def _ours(wire: HttpWire, target: bytes, body: bytes) -> Callable[[], Awaitable[int]]:
    async def fetch() -> int:
        exchange = await wire.send("POST", target, _HEADERS, body, generous())
        pieces = 0
        while await exchange.read():
            pieces += 1
        await exchange.aclose()
        return pieces

    return fetch


def _theirs(transport: httpx.AsyncBaseTransport, url: str, body: bytes) -> Callable[[], Awaitable[int]]:
    where = httpx.URL(url)

    async def fetch() -> int:
        request = httpx.Request("POST", where, headers=_HEADERS, content=body)
        response = await transport.handle_async_request(request)
        pieces = 0
        async for _ in response.aiter_raw():
            pieces += 1
        await response.aclose()
        return pieces

    return fetch


async def _cpu_us(fetch: Callable[[], Awaitable[int]], num_exchanges: int, *, by_piece: bool) -> float:
    """Processor time of this process for one exchange, or for one piece, in microseconds."""
    todo = iter(range(num_exchanges))

    async def work() -> int:
        return sum([await fetch() for _ in todo])

    started = time.process_time()
    pieces = sum(await asyncio.gather(*(work() for _ in range(_CONCURRENCY))))
    return (time.process_time() - started) / (pieces if by_piece else num_exchanges) * 1e6


async def _measure(base_url: str, rounds: int, num_exchanges: int) -> None:
    scenarios = {
        "exchange, 2 KB body": ("/whole", _BODY, num_exchanges, False),
        "exchange, 50 KB body": ("/whole", _LARGE_BODY, num_exchanges // 2, False),
        "stream of 100 events in one burst": ("/burst", _BODY, num_exchanges // 4, False),
        "piece of a slow stream": ("/events", _BODY, 2 * _CONCURRENCY, True),
    }
    wire = Transport(SystemClock()).wire(base_url)
    async with httpx.AsyncHTTPTransport() as theirs:
        print(f"{'CPU us per':36}{'ours':>12}{'httpx':>12}")
        for name, (target, body, num, by_piece) in scenarios.items():
            fetches = [
                _ours(wire, target.encode(), body),
                _theirs(theirs, base_url + target, body),
            ]
            costs = [[await _cpu_us(fetch, num, by_piece=by_piece) for fetch in fetches] for _ in range(rounds)]
            least = [min(column) for column in zip(*costs, strict=True)]
            print(f"{name:36}{least[0]:12.1f}{least[1]:12.1f}", flush=True)
    await wire.aclose()


def main() -> None:
    """Run every scenario and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--exchanges", type=int, default=2000, help="per round and scenario")
    options = parser.parse_args()
    near, far = multiprocessing.get_context("spawn").Pipe()
    upstream = multiprocessing.get_context("spawn").Process(target=_run_upstream, args=(far,))
    upstream.start()
    try:
        uvloop.run(_measure(near.recv(), options.rounds, options.exchanges))
    finally:
        near.send(None)
        upstream.join()


if __name__ == "__main__":
    main()

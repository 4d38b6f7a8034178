"""How long one client's request holds up others: hostile requests and answers, and the slowest small call meanwhile.

    python -m tests.benchmarks.faults.stalls [--only NAME] [--count 3]

Each case is sent as often as `--count` says while another client makes small calls one after the other; a case may
hold none of them up for more than `--limit` ms. The upstream and the small calls are processes of their own.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from tests.benchmarks.faults.stall_cases import ANSWERS, REQUESTS
from tests.support.faults import CACHE, CHAT, CaseServer, Figure, at_most, parser, policy, report
from tests.support.gateway import Gateway, running_gateway
from tests.support.http_client import HttpClient, chat_body, request_bytes
from tests.support.servers.openai_server import Behaviour

_ROUTES = {
    "plain/*": {},
    "cached/*": {"cache": CACHE},
    "whole/*": {"cache": CACHE, "slo": {}, "admission": {}, "routing": {"policy": "predicted_cost"}},
}
_KEPT = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}'
)


def _serve_upstream(ports: Connection) -> None:
    async def serve() -> None:
        async with CaseServer() as server:
            server.default = Behaviour(body=_KEPT)
            server.cases = {name: make() for name, make in ANSWERS.items()}
            ports.send(server.port)
            await asyncio.get_running_loop().run_in_executor(None, ports.recv)

    asyncio.run(serve())


def _probe(port: int, control: Connection) -> None:
    """Small calls one after the other; answers each message with the longest since the one before, in seconds."""
    request = request_bytes(CHAT, chat_body(model="plain/small"))
    with socket.create_connection(("127.0.0.1", port)) as client:
        longest_s = 0.0
        while True:
            if control.poll():
                if control.recv() is None:
                    return
                control.send(longest_s)
                longest_s = 0.0
            begun_at = time.perf_counter()
            client.sendall(request)
            while _KEPT not in (answer := client.recv(65536)):
                assert answer.startswith(b"HTTP/1.1 200 "), answer
            longest_s = max(longest_s, time.perf_counter() - begun_at)
            time.sleep(0.001)


async def _attack(gateway: Gateway, request: bytes) -> str:
    client = await HttpClient.open(gateway.port)
    try:
        client.send(request)
        answer = await client.answer(120)
        return str(answer.status) if answer.is_whole else f"{answer.status}, broken off"
    finally:
        client.close()


def _cases(route: str) -> dict[str, Callable[[], bytes]]:
    requests = {name: lambda make=make: make(f"{route}/small") for name, make in REQUESTS.items()}
    for name in ANSWERS:
        is_stream = name.startswith("event")
        body = chat_body(model=f"{route}/{name}", stream=is_stream)
        requests[f"answer: {name}"] = lambda body=body: request_bytes(CHAT, body)
    return requests


def measure(only: str, rounds: int, routes: list[str], limit_ms: float) -> list[Figure]:
    """A figure for each route and case."""
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    upstream = context.Process(target=_serve_upstream, args=(there,), daemon=True)
    upstream.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    text = policy(url, url, routes=_ROUTES)
    figures = []
    with running_gateway(text) as gateway:
        control, its = context.Pipe()
        prober = context.Process(target=_probe, args=(gateway.port, its), daemon=True)
        prober.start()
        try:
            for route in routes:
                for name, make in _cases(route).items():
                    if only not in name:
                        continue
                    request = make()
                    control.send(True)
                    control.recv()
                    begun_at = time.perf_counter()
                    ends = [asyncio.run(_attack(gateway, request)) for _ in range(rounds)]
                    took_s = (time.perf_counter() - begun_at) / rounds
                    control.send(True)
                    longest_ms = control.recv() * 1e3
                    what = f"{route}, {name}: {', '.join(sorted(set(ends)))}"
                    figures.append(at_most(what, limit_ms, longest_ms, "ms"))
                    print(f"{what}: {longest_ms:.0f} ms; {took_s:.2f} s each, {gateway.rss_mib():.0f} MiB", flush=True)
        finally:
            control.send(None)
            here.send(None)
            prober.join()
    return figures


def main() -> int:
    """Measure and print."""
    options = parser(__doc__, count=3, what="times that each case is sent")
    options.add_argument("--only", default="", help="cases whose names have this")
    options.add_argument("--routes", nargs="+", default=["plain", "whole"], help="plain, cached, whole")
    options.add_argument("--limit", type=float, default=250.0, help="in ms (default 250)")
    given = options.parse_args()
    return report(measure(given.only, given.count, given.routes, given.limit))


if __name__ == "__main__":
    sys.exit(main())

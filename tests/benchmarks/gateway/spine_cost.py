"""What this revision of the gateway costs beside another one, in turns: CPU of a request as a ratio within one run.

    python -m tests.benchmarks.gateway.spine_cost --other CHECKOUT

CHECKOUT is another checkout with an environment of its own (`make serve` or `make test` makes it). Both gateways run
side by side before the same upstream, with a key, a route, metrics, usage and the access log, and are asked some
hundred requests at a time, one after the other. What is told is the median, over all rounds, of this revision's CPU
time beside the other's in the neighbouring turn, with its quartiles.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import statistics
from pathlib import Path

from tests.benchmarks.gateway.turns import AnsweringUpstream, Client, Turn, connect, cpu_us, stay_awake
from tests.support.gateway import Gateway, start_gateway

_KEY = "sk-benchmark-0123456789"
POLICY = """\
version: 1
backends:
  up: {{type: openai, base_url: "http://127.0.0.1:{port}/v1", api_key: "env:UPSTREAM_KEY"}}
keys:
  - {{name: bench, key: "env:GATEWAY_KEY"}}
routes:
  - name: plain
    match: {{models: ["plain"]}}
    backends: [{{ref: up}}]
  - name: cached
    match: {{models: ["cached"]}}
    backends: [{{ref: up}}]
    cache: {{exact: {{ttl: 1h}}}}
"""
ENVIRON = {"GATEWAY_KEY": _KEY, "UPSTREAM_KEY": "sk-upstream", "SLIPSTREAM_RELOAD_INTERVAL": "1h"}
WAYS = {
    "2 KB, whole": ("plain", 2_000, False),
    "50 KB, whole": ("plain", 50_000, False),
    "2 KB, streamed": ("plain", 2_000, True),
    "2 KB, exact hit": ("cached", 2_000, False),
}
_WARM_ROUNDS = 5


def request_bytes(way: str) -> bytes:
    """A request of one of the `WAYS`."""
    model, num_bytes, stream = WAYS[way]
    content = ("some words of a prompt " * (num_bytes // 23))[:num_bytes]
    messages = [{"role": "user", "content": content}]
    raw = json.dumps({"model": model, "messages": messages, "temperature": 0.7, "stream": stream}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {_KEY}\r\naccept: */*\r\nuser-agent: benchmark\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


async def _cost_us(gateway: Gateway, clients: list[Client], request: bytes, size: int) -> float:
    before_us = cpu_us(gateway.process.pid)
    await Turn(request, size).take(clients)
    return (cpu_us(gateway.process.pid) - before_us) / size


async def _measure(ours: Gateway, theirs: Gateway, rounds: int, size: int) -> dict[str, list[tuple[float, float]]]:
    """By way the microseconds of both, in every round; who goes first changes."""
    ours_clients, theirs_clients = await connect(ours.port), await connect(theirs.port)
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(rounds + _WARM_ROUNDS):
        for way in WAYS:
            request = request_bytes(way)
            if number % 2:
                mine = await _cost_us(ours, ours_clients, request, size)
                other = await _cost_us(theirs, theirs_clients, request, size)
            else:
                other = await _cost_us(theirs, theirs_clients, request, size)
                mine = await _cost_us(ours, ours_clients, request, size)
            if number >= _WARM_ROUNDS:
                took[way].append((mine, other))
    return took


async def _compare(other: Path, rounds: int, size: int) -> dict[str, list[tuple[float, float]]]:
    async with await asyncio.get_running_loop().create_server(AnsweringUpstream, "127.0.0.1", 0) as server:
        stay_awake()
        policy = POLICY.format(port=server.sockets[0].getsockname()[1])
        command = other / ".venv" / "bin" / "slipstream"
        async with (
            start_gateway(policy, environ=ENVIRON) as ours,
            start_gateway(policy, environ=ENVIRON, command=command) as theirs,
        ):
            return await _measure(ours, theirs, rounds, size)


def main() -> None:
    """Prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--size", type=int, default=160, help="requests a turn")
    options = parser.parse_args()
    took = asyncio.run(_compare(options.other.absolute(), options.rounds, options.size))
    print("CPU us a request in a calm moment; times that of the other revision, quartiles")
    for way, both in took.items():
        low, middle, high = statistics.quantiles([operator.truediv(*each) for each in both], n=4)
        calm_us = statistics.quantiles([mine for mine, _ in both], n=10)[0]
        print(f"  {way:16} {calm_us:6.1f}   {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()

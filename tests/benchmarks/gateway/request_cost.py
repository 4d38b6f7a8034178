"""What balancing, limits and admission add to a request of 2 KB: CPU microseconds of a gateway in a process of its own.

    python -m tests.benchmarks.gateway.request_cost

One gateway has a route for each way; they are asked in turns, some hundred requests at a time over the same sixteen
connections, so that all of them meet the same moments of a machine that is shared. What a way costs is told beside the
first one in the neighbouring turn, the median over all rounds, in the microseconds of the first one's calmest tenth.
The upstream answers at once, whole or as a short stream, and never sleeps: to wake it would be the gateway's cost. A
balanced route has two backends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import statistics
from pathlib import Path

import msgspec

from gateway.simulate.figures import PolicyFigure
from tests.benchmarks.gateway.turns import AnsweringUpstream, Turn, connect, cpu_us, stay_awake
from tests.support.gateway import Gateway, start_gateway

_MOST_US = 20.0
_WAYS = {
    "one backend": ("up", ""),
    "two in turns": ("up, other", "    routing: {policy: round_robin}\n"),
    "balanced": ("up, other", "    routing: {policy: predicted_cost}\n"),
    "with limits": ("up, other", "    routing: {policy: predicted_cost}\n    slo: {}\n"),
    "with admission": ("up, other", "    routing: {policy: predicted_cost}\n    slo: {}\n    admission: {}\n"),
}


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


async def _measure(gateway: Gateway, rounds: int, size: int, *, stream: bool) -> dict[str, list[float]]:
    """By way the microseconds of CPU that a request took, in every round."""
    clients = await connect(gateway.port)
    requests = {way: _request(place, stream=stream) for place, way in enumerate(_WAYS)}
    took: dict[str, list[float]] = {way: [] for way in _WAYS}
    for number in range(rounds + 5):
        for way, request in requests.items():
            before_us = cpu_us(gateway.process.pid)
            await Turn(request, size).take(clients)
            if number >= 5:
                took[way].append((cpu_us(gateway.process.pid) - before_us) / size)
    return took


async def _compare(rounds: int, size: int) -> dict[str, dict[str, list[float]]]:
    loop = asyncio.get_running_loop()
    async with await loop.create_server(AnsweringUpstream, "127.0.0.1", 0) as server:
        stay_awake()
        async with start_gateway(_policy(server.sockets[0].getsockname()[1])) as gateway:
            return {
                "whole": await _measure(gateway, rounds, size, stream=False),
                "streamed": await _measure(gateway, rounds, size, stream=True),
            }


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
        figure = PolicyFigure(
            "what balancing, limits and admission add to a request of 2 KB",
            f"<= {_MOST_US:.0f} us of CPU",
            f"{added['whole']:.0f} us",
            note=f"{added['streamed']:.0f} us where the answer is streamed; times depend on the machine",
        )
        options.json.write_bytes(msgspec.json.encode([figure]))


if __name__ == "__main__":
    main()

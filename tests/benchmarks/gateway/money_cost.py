"""What the ledger, keys, limits and budgets add to a request: CPU microseconds of a gateway's whole process tree.

    python -m tests.benchmarks.gateway.money_cost [--starts 5] [--rounds 16] [--postgres URL]

Gateways that differ in nothing else are asked in turns, some hundred requests at a time, so that all of them meet the
same moments of a machine that is shared. All have metrics and the access log; their answers are whole, of 2 KB. A
process keeps for its life the places in memory that it has got at its start, and they make it some per cent faster or
slower than another one: so all gateways are started anew several times. Of each start is told all that a gateway's
processes took from the first round to the last, what goes on behind the calls and while nobody asks included, divided
by its requests; of all starts the median, the least and the most.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.gateway.spine_cost import ENVIRON, request_bytes
from tests.benchmarks.gateway.turns import AnsweringUpstream, Turn, connect, cpu_us, stay_awake
from tests.support.gateway import start_gateway

_WARM_ROUNDS = 5
_BASE = """\
version: 1
backends:
  up: {{type: openai, base_url: "http://127.0.0.1:{port}/v1", api_key: "env:UPSTREAM_KEY"}}
routes:
  - name: all
    match: {{models: ["*"]}}
    backends: [{{ref: up, price: {{input_per_1m: 2.5, output_per_1m: 10}}}}]
"""
_LEDGER = 'ledger: {{url: "{url}", journal: "{folder}/journal-{place}"}}\n'
_KEYS = 'keys:\n  - {{name: bench, key: "env:GATEWAY_KEY", tenant: acme}}\n'
_LIMITS = """\
limits:
  - {{name: each-key, per: key, rpm: 100000000, tpm: 100000000000, concurrent: 1000}}
budgets:
  - {{name: tenant-month, per: tenant, usd: 1000000, every: month, time_zone: Europe/Berlin}}
"""
WAYS = {
    "nothing": _BASE,
    "ledger": _BASE + _LEDGER,
    "ledger, keys": _BASE + _LEDGER + _KEYS,
    "ledger, keys, limits, budgets": _BASE + _LEDGER + _KEYS + _LIMITS,
}
"""Policies, to be filled in with `port`, `folder`, `place` and `url`."""


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _tree(int(child))


def _tree_us(pid: int) -> float:
    return sum(map(cpu_us, _tree(pid)))


def _behind_us(pid: int) -> float:
    """What is not the event loop's, which runs in the first thread."""
    of_the_loop = int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e3
    return _tree_us(pid) - of_the_loop


class Cost(NamedTuple):
    """Of a request at one start, in microseconds of CPU; `behind`: what of it was not the event loop's."""

    whole: float
    behind: float


async def _measure(rounds: int, size: int, postgres: str | None) -> list[Cost]:
    """Of each way, by gateways of one start."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = await stack.enter_async_context(await loop.create_server(AnsweringUpstream, "127.0.0.1", 0))
        port = server.sockets[0].getsockname()[1]
        pids, clients = [], []
        for place, text in enumerate(WAYS.values()):
            url = postgres or f"sqlite:///{folder}/ledger-{place}.sqlite3"
            policy = text.format(port=port, folder=folder, place=place, url=url)
            gateway = await stack.enter_async_context(start_gateway(policy, environ=ENVIRON, afresh=True))
            pids.append(gateway.process.pid)
            clients.append(await connect(gateway.port))
        stay_awake()
        request = request_bytes("2 KB, whole")
        begin: list[Cost] = []
        for number in range(_WARM_ROUNDS + rounds):
            if number == _WARM_ROUNDS:
                begin = [Cost(_tree_us(pid), _behind_us(pid)) for pid in pids]
            for each in clients:
                await Turn(request, size).take(each)
        end = [Cost(_tree_us(pid), _behind_us(pid)) for pid in pids]
        asked = rounds * size
        return [
            Cost((now.whole - before.whole) / asked, (now.behind - before.behind) / asked)
            for before, now in zip(begin, end, strict=True)
        ]


def _told(values: list[float], digits: int = 0) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    """Prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=16, help="at each start")
    parser.add_argument("--size", type=int, default=500, help="requests a turn")
    parser.add_argument(
        "--postgres", metavar="URL", help="an empty database in place of SQLite; its server is not counted"
    )
    options = parser.parse_args()
    starts = []
    for _ in range(options.starts):
        starts.append(asyncio.run(_measure(options.rounds, options.size, options.postgres)))
        print(", ".join(f"{cost.whole:.0f}" for cost in starts[-1]), "us", flush=True)
    print(f"CPU us a request; what is more than with nothing; in per cent; beside the event loop: {len(starts)} starts")
    for place, way in enumerate(WAYS):
        whole = [costs[place].whole for costs in starts]
        more = [costs[place].whole - costs[0].whole for costs in starts]
        share = [100 * (costs[place].whole / costs[0].whole - 1) for costs in starts]
        behind = [costs[place].behind for costs in starts]
        print(f"  {way:30} {_told(whole)}; +{_told(more)}; +{_told(share)} %; {_told(behind, 1)}")


if __name__ == "__main__":
    main()

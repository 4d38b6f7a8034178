"""What the ledger, keys, limits and budgets add to a request: CPU microseconds of a gateway's whole process tree.

    python -m tests.benchmarks.gateway.money_cost [--rounds 80] [--postgres URL]

Gateways that differ in nothing else are asked in turns, some hundred requests at a time, so that all of them meet the
same moments of a machine that is shared. All have metrics and the access log; their answers are whole, of 2 KB. What
is told is all that a gateway's processes took from the first round to the last, what goes on behind the calls and
while nobody asks included, divided by its requests; beside the first one, with what of it threads and processes beside
the event loop took, and with what the quarters of the run say.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

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
_WAYS = {
    "nothing": _BASE,
    "ledger": _BASE + _LEDGER,
    "ledger, keys": _BASE + _LEDGER + _KEYS,
    "ledger, keys, limits, budgets": _BASE + _LEDGER + _KEYS + _LIMITS,
}


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


async def _measure(rounds: int, size: int, postgres: str | None) -> tuple[dict[str, list[float]], dict[str, float]]:
    """By way the microseconds of CPU a request, in every round, and those beside the event loop over all of them."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = await stack.enter_async_context(await loop.create_server(AnsweringUpstream, "127.0.0.1", 0))
        port = server.sockets[0].getsockname()[1]
        pids, clients = [], []
        for place, text in enumerate(_WAYS.values()):
            url = postgres or f"sqlite:///{folder}/ledger-{place}.sqlite3"
            policy = text.format(port=port, folder=folder, place=place, url=url)
            gateway = await stack.enter_async_context(start_gateway(policy, environ=ENVIRON))
            pids.append(gateway.process.pid)
            clients.append(await connect(gateway.port))
        stay_awake()
        request = request_bytes("2 KB, whole")
        took: dict[str, list[float]] = {way: [] for way in _WAYS}
        before_us: list[float] = []
        behind_us: list[float] = []
        for number in range(rounds + _WARM_ROUNDS):
            for each in clients:
                await Turn(request, size).take(each)
            now_us = list(map(_tree_us, pids))
            if number >= _WARM_ROUNDS:
                for way, before, now in zip(_WAYS, before_us, now_us, strict=True):
                    took[way].append((now - before) / size)
            if number == _WARM_ROUNDS:
                behind_us = list(map(_behind_us, pids))
            before_us = now_us
        since = [now - before for now, before in zip(map(_behind_us, pids), behind_us, strict=True)]
        return took, {way: us / (rounds - 1) / size for way, us in zip(_WAYS, since, strict=True)}


def main() -> None:
    """Prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--size", type=int, default=500, help="requests a turn")
    parser.add_argument(
        "--postgres", metavar="URL", help="an empty database in place of SQLite; its server is not counted"
    )
    options = parser.parse_args()
    took, behind = asyncio.run(_measure(options.rounds, options.size, options.postgres))
    first = next(iter(took.values()))
    quarter = -(-options.rounds // 4)
    print("CPU us a request, and what that is more than with nothing; beside the event loop; the more by quarters")
    for way, each in took.items():
        more = [mine - base for mine, base in zip(each, first, strict=True)]
        quarters = [statistics.fmean(more[begin : begin + quarter]) for begin in range(0, len(more), quarter)]
        scatter = ", ".join(f"{us:.1f}" for us in quarters)
        figures = f"{statistics.fmean(each):7.1f}  +{statistics.fmean(more):5.1f}  {behind[way]:6.1f}"
        print(f"  {way:32}{figures}  ({scatter})")


if __name__ == "__main__":
    main()

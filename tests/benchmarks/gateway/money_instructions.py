"""What the ledger, keys, limits and budgets add to a request, in processor instructions, which no busy machine changes.

    python -m tests.benchmarks.gateway.money_instructions [--size 900]

The gateways of `money_cost`, one after the other, under valgrind's callgrind (which must be installed): half a minute
each. Told apart is what the event loop takes and what goes on behind it. All takes fifty times as long, so what waits
for the wall clock comes more often: the ledger's rows go to the store by tens and not by hundreds, and what is behind
is more than it is.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.gateway.money_cost import WAYS
from tests.benchmarks.gateway.spine_cost import ENVIRON, request_bytes
from tests.benchmarks.gateway.spine_instructions import control, count_in, launcher
from tests.benchmarks.gateway.turns import AnsweringUpstream, Turn, connect
from tests.support.gateway import gateway_process

_POLL_S = 0.1
_WARM = 300
_STORED_S = 1.5


class Instructions(NamedTuple):
    """Of a request, in thousands."""

    loop: float
    behind: float


async def _count(policy: str, size: int) -> Instructions:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with await asyncio.get_running_loop().create_server(AnsweringUpstream, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            text = policy.format(port=port, folder=folder, place=0, url=f"sqlite:///{folder}/ledger.sqlite3")
            command = launcher(folder, Path(sys.prefix).parent, "--separate-threads=yes")
            with gateway_process(text, environ=ENVIRON, command=command) as gateway:
                while not gateway.has_started():
                    await asyncio.sleep(_POLL_S)
                clients = await connect(gateway.port)
                request = request_bytes("2 KB, whole")
                await Turn(request, _WARM).take(clients)
                await asyncio.sleep(_STORED_S)
                await control(gateway.process.pid, "-i", "on")
                await Turn(request, size).take(clients)
                await asyncio.sleep(_STORED_S)
                await control(gateway.process.pid, "-i", "off")
                await control(gateway.process.pid, "-d")
        return _counted(folder, size)


def _counted(folder: Path, size: int) -> Instructions:
    # The first thread is the event loop's.
    loop, *behind = (count_in(path) / size / 1e3 for path in sorted(folder.glob("counted.1-*")))
    return Instructions(loop, sum(behind))


def main() -> None:
    """Prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=900, help="requests that are counted")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed")
    print("thousand instructions of a request on the event loop; what is more than with nothing; behind it")
    first: Instructions | None = None
    for way, policy in WAYS.items():
        counted = asyncio.run(_count(policy, options.size))
        first = first or counted
        print(f"  {way:30} {counted.loop:6.1f}; +{counted.loop - first.loop:.1f}; {counted.behind:.1f}", flush=True)


if __name__ == "__main__":
    main()

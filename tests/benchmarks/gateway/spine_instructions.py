"""What a request costs beside another revision in processor instructions, which no busy machine changes.

    python -m tests.benchmarks.gateway.spine_instructions --other CHECKOUT [--way "2 KB, whole"]

As `spine_cost`, whose policy and requests these are, but each gateway runs under valgrind's callgrind (which must be
installed), one after the other, and counts only while it answers. A minute or two a gateway. Its timers run on the
wall clock, of which it takes fifty times as much: one or two per cent are theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.gateway.spine_cost import ENVIRON, POLICY, WAYS, request_bytes
from tests.benchmarks.gateway.turns import AnsweringUpstream, Turn, connect
from tests.support.gateway import gateway_process

_TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)
_POLL_S = 0.1
_LAUNCHER = """\
#!/bin/sh
exec valgrind --tool=callgrind --instr-atstart=no {options} --callgrind-out-file={folder}/counted {python} {script} "$@"
"""


async def control(pid: int, *options: str) -> None:
    """Has callgrind begin or end to count in that process, or write down what it has."""
    process = await asyncio.create_subprocess_exec(
        "callgrind_control", *options, str(pid), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0, f"callgrind_control {options} failed"


async def _instructions(checkout: Path, policy: str, ways: list[str], size: int) -> dict[str, float]:
    """By way, of one request."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counted: dict[str, float] = {}
        with gateway_process(policy, environ=ENVIRON, command=launcher(folder, checkout)) as gateway:
            while not gateway.has_started():
                await asyncio.sleep(_POLL_S)
            clients = await connect(gateway.port)
            for way in ways:
                request = request_bytes(way)
                await Turn(request, size).take(clients)
                await control(gateway.process.pid, "-i", "on")
                await Turn(request, size).take(clients)
                await control(gateway.process.pid, "-i", "off")
                await control(gateway.process.pid, "-d")
                counted[way] = _newest_count(folder) / size
        return counted


def launcher(folder: Path, checkout: Path, *options: str) -> Path:
    """The checkout's `slipstream`, under callgrind, whose counts are to be `counted*` in the folder."""
    path, scripts = folder / "slipstream", checkout / ".venv" / "bin"
    text = _LAUNCHER.format(
        options=" ".join(options), folder=folder, python=scripts / "python", script=scripts / "slipstream"
    )
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def _newest_count(folder: Path) -> int:
    return count_in(max(folder.glob("counted*"), key=lambda path: path.stat().st_mtime_ns))


def count_in(path: Path) -> int:
    """The instructions that a file of callgrind's tells of."""
    return int(_TOTAL.findall(path.read_text(encoding="utf-8"))[-1])


async def _compare(other: Path, ways: list[str], size: int) -> Mapping[str, tuple[float, float]]:
    async with await asyncio.get_running_loop().create_server(AnsweringUpstream, "127.0.0.1", 0) as server:
        policy = POLICY.format(port=server.sockets[0].getsockname()[1])
        ours = await _instructions(Path(sys.prefix).parent, policy, ways, size)
        theirs = await _instructions(other, policy, ways, size)
        return {way: (ours[way], theirs[way]) for way in ways}


def main() -> None:
    """Prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the other checkout")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this; may be given several times")
    parser.add_argument("--size", type=int, default=160, help="requests that are counted")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed")
    counted = asyncio.run(_compare(options.other.absolute(), options.way or list(WAYS), options.size))
    print("thousand instructions of a request; times those of the other revision")
    for way, (ours, theirs) in counted.items():
        print(f"  {way:16} {ours / 1e3:7.1f}   {ours / theirs:.3f}")


if __name__ == "__main__":
    main()

"""What a call with an exact cache, admission and a least-cost pool goes through: functions called, and files entered.

    python -m tests.benchmarks.gateway.call_path [--other CHECKOUT] [--show]

The other revision is a checkout with a `.venv`. Counted is everything that happens between two signals around one
call on a warm gateway, so the call's log line and the server's own work are included, in both revisions alike. The
smallest count of a few tries is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.support.servers.openai_server import OpenAIServer
from tests.support.way_of_a_call import way_of_a_call

_TRIES = 3


async def _shortest(python: str) -> list[str]:
    async with OpenAIServer() as upstream:
        with tempfile.TemporaryDirectory() as folder:
            return min([await way_of_a_call(upstream, Path(folder), python) for _ in range(_TRIES)], key=len)


def _summary(name: str, calls: list[str]) -> str:
    files = {call.partition(":")[0] for call in calls}
    return f"{name:<12}{len(calls):>5} calls{len(files):>5} files"


def main() -> None:
    """Prints the figures, and with --show the way itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="a checkout to compare with")
    parser.add_argument("--show", action="store_true", help="print every call of this revision, in order")
    given = parser.parse_args()
    calls = asyncio.run(_shortest(sys.executable))
    if given.show:
        print("\n".join(calls))
    print(_summary("here", calls))
    if given.other is not None:
        print(_summary("other", asyncio.run(_shortest(str((given.other / ".venv/bin/python").absolute())))))


if __name__ == "__main__":
    main()

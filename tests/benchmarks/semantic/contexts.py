"""How many calls of a real trace a semantic cache could answer at most: those whose context an earlier call had too.

    python -m tests.benchmarks.semantic.contexts --trace mooncake_conversation.jsonl.gz

A line of the trace is one call: `h` names its blocks of 512 tokens, and a name stands for all that is before it too.
With `context: full` everything before the last question has to be equal; a question is not looked up where it is longer
than about 512 tokens, so it lies in the last two blocks. What is counted has all blocks before these in common with an
earlier call of as many blocks: more than what could be served, for contexts may differ within those two, and questions
may differ.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

_LAST_BLOCKS = (1, 2)
"""In which a question lies."""


def main() -> None:
    """Prints the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    calls = _blocks(parser.parse_args().trace)
    whole: set[int] = set()
    contexts: set[tuple[int, int]] = set()
    num_repeated = num_shared = 0
    for blocks in calls:
        own = {(last, blocks[-1 - last]) for last in _LAST_BLOCKS if len(blocks) > last}
        num_repeated += blocks[-1] in whole
        num_shared += bool(own & contexts)
        whole.add(blocks[-1])
        contexts |= own
    print(f"{len(calls)} calls, {sum(map(len, calls)) / len(calls):.1f} blocks in the mean")
    print(f"equal to an earlier call, block by block: {num_repeated / len(calls):.1%}")
    print(f"with a context that an earlier call may have had: {num_shared / len(calls):.1%}")


def _blocks(trace: Path) -> list[list[int]]:
    """Of each call."""
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        return [json.loads(line)["h"] for line in file]


if __name__ == "__main__":
    main()

"""Whether a mirror promotes the right candidates: a real stage, answers that are right or wrong by labels, a judge.

    python -m tests.benchmarks.policies.mirror_switch --labelled routellm_correctness.jsonl.gz

The route's answers are right where the strong model of the labels was. A candidate errs on other prompts: of all
calls it loses 10 % and wins 10 % (equal), or loses 12.5 % and wins 7.5 % (5 % worse), at half the price. Copies are
made of `--share` of the calls, and calls go on until the rule has decided. The exit code is 1 where a worse candidate
is promoted, or an equal and cheaper one is not.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from random import Random

from policies.mirror.evidence import Evidence
from policies.speculation.router.labelled import read_labelled
from tests.support.clock import FakeClock
from tests.support.policy.mirrored import Mirrored

_MAX_CALLS = 2_000_000


def measure(labels: list[bool], losses: float, wins: float, *, share: float, seed: int) -> tuple[str, Evidence, int]:
    """The verdict on a candidate that loses and wins so much of all calls, and how many calls it took."""
    random = Random(seed)
    right = sum(labels) / len(labels)
    loses, gains = losses / right, wins / (1 - right)

    def draw() -> tuple[bool, bool]:
        is_right = random.choice(labels)
        return is_right, is_right != (random.random() < (loses if is_right else gains))

    mirrored = Mirrored(draw, FakeClock(), seed, share=share)

    async def work() -> int:
        for number in range(1, _MAX_CALLS):
            await mirrored.ask()
            for each in (mirrored.target, mirrored.candidate, mirrored.judge):
                each.calls.clear()
            if mirrored.mirror.verdict != "open":
                return number
        return _MAX_CALLS

    calls = asyncio.run(work())
    return mirrored.mirror.verdict, mirrored.mirror.evidence, calls


def main() -> int:
    """Prints a line for each kind of candidate; whether one was judged wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labelled", type=Path, required=True, help="prompts with what each model made of them")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.05, help="of the calls that are copied")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    labels = [row.strong > 0.5 for row in read_labelled(options.labelled)]
    has_missed = False
    print("candidate              promoted     pairs p50   most   calls p50")
    for name, losses, wins, wanted in (("5 % worse, cheaper", 0.125, 0.075, 0), ("equal, cheaper", 0.1, 0.1, 1)):
        found = [measure(labels, losses, wins, share=options.share, seed=seed) for seed in range(options.seeds)]
        promoted = sum(verdict == "promote" for verdict, _, _ in found)
        pairs = sorted(evidence.num_pairs for _, evidence, _ in found)
        calls = sorted(calls for _, _, calls in found)
        middle = len(found) // 2
        print(f"{name:<20} {promoted:>3} of {len(found):<3} {pairs[middle]:>13,} {pairs[-1]:>6,} {calls[middle]:>11,}")
        has_missed |= promoted != wanted * len(found)
    return int(has_missed)


if __name__ == "__main__":
    sys.exit(main())

"""What the controller of drafts loses where conditions jump: against the target alone, and against who knows them.

    python -m tests.benchmarks.policies.draft_controller [--runs 16] [--seed 1000] [--way rounds,push] [--json FILE]

A run is 30 parts of 300 to 4,000 tokens. From part to part everything jumps: acceptance (.15 to .95), a step of the
target (5 to 50 ms), the draft's token (5 to 40 % of that), the round trip (1 to 80 ms), what a row adds to a step (1 to
30 %). The best possible is told all of that and takes the best length of drafts in each part. Arithmetic with random
numbers, no sleep; the controller is the one that is served with. It was tuned on seeds 0 to 39.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from policies.speculation.control.controller import Controller
from policies.speculation.shadow import is_worth_scoring

_PARTS = 30
_MOST = 8
_NOISE = 0.1
"""Standard deviation of the logarithm of each time."""
_ANSWER = 100
"""Tokens of an answer, behind which it is scored off the path where `Shadow` would do that."""


class Conditions(NamedTuple):
    """One part of a run."""

    num_tokens: int
    acceptance: float
    step_s: float
    draft_token_s: float
    round_trip_s: float
    row: float

    def verify_s(self, num_drafted: int) -> float:
        """From a draft to its verdict, over rounds."""
        return self.step_s * (1 + self.row * num_drafted) + self.round_trip_s

    def token_s(self, begun: int, going_on: int) -> float:
        """A token over rounds of `begun` tokens where the draft begins, and of `going_on` where it has gone on."""
        # A round that begins, one behind that, and one behind one that went on itself.
        miss = [1 - self.acceptance ** (length + 1) for length in (begun, going_on)]
        shares = (miss[1], (1 - miss[0]) * miss[1], (1 - miss[0]) * (1 - miss[1]))
        seconds = (
            self.draft_s(begun, 0) + self.verify_s(begun),
            self.draft_s(going_on, self.said_meanwhile(begun)) + self.verify_s(going_on),
            self.draft_s(going_on, self.said_meanwhile(going_on)) + self.verify_s(going_on),
        )
        tokens = [sum(self.acceptance**place for place in range(length + 1)) for length in (begun, going_on, going_on)]
        spent_s = sum(share * each for share, each in zip(shares, seconds, strict=True))
        return spent_s / sum(share * each for share, each in zip(shares, tokens, strict=True))

    def best_s(self) -> float:
        """A token over rounds of the best lengths."""
        lengths = range(1, _MOST + 1)
        return min(self.token_s(begun, going_on) for begun in lengths for going_on in lengths)

    def said_meanwhile(self, num_drafted: int) -> int:
        """Tokens that a draft says behind one of so many while that is checked, the target's own left out."""
        return max(0, int(self.verify_s(num_drafted) / self.draft_token_s) - 1)

    def draft_s(self, num_drafted: int, num_ready: int) -> float:
        """Until a draft is there, of which so many tokens are ready."""
        return max(0, num_drafted - num_ready) * self.draft_token_s


class PushedDraft:
    """A draft that is pushed: after each miss the new guess has to travel before a step can use it."""

    def __init__(self, conditions: Conditions, random: Random) -> None:
        self._now, self._random = conditions, random
        self.begin()

    def begin(self) -> None:
        """It starts to guess."""
        self._empty_s = self._now.round_trip_s + self._now.draft_token_s

    def step(self) -> tuple[int, float]:
        """Tokens and seconds of the target's next step."""
        now = self._now
        num_rows = 0 if self._empty_s > 0 else max(1, min(_MOST, int(now.step_s / now.draft_token_s)))
        self._empty_s -= now.step_s
        accepted = _accepted(now.acceptance, num_rows, self._random)
        if accepted < num_rows:
            self.begin()
        return accepted + 1, now.step_s * (1 + now.row * num_rows)

    def token_s(self, num_steps: int = 2000) -> float:
        """A token in the long run."""
        steps = [self.step() for _ in range(num_steps)]
        return sum(seconds for _, seconds in steps) / sum(tokens for tokens, _ in steps)


class Run(NamedTuple):
    """Seconds of a run: spent, alone, by who knows all; the parts in which no draft pays, spent and alone."""

    spent_s: float
    alone_s: float
    best_s: float
    lost_s: float
    lost_alone_s: float


def _conditions(random: Random) -> Iterator[Conditions]:
    for _ in range(_PARTS):
        step_s = 0.005 * 10 ** random.random()
        yield Conditions(
            random.randint(300, 4000),
            random.uniform(0.15, 0.95),
            step_s,
            random.uniform(0.05, 0.4) * step_s,
            0.001 * 80 ** random.random(),
            random.choice((0.01, 0.03, 0.1, 0.3)),
        )


def _accepted(acceptance: float, num_drafted: int, random: Random) -> int:
    return next((place for place in range(num_drafted) if random.random() >= acceptance), num_drafted)


def _rounds(controller: Controller, now: Conditions, random: Random) -> float:
    """Seconds of a part over rounds."""
    spent_s, come, num_ready = 0.0, 0, 0
    unscored, num_answers, was_by_rounds = 0, 0, False
    while come < now.num_tokens:
        num_drafted = controller.draft_tokens(_MOST, num_ready=num_ready)
        noise = random.lognormvariate(0, _NOISE)
        if num_drafted:
            accepted = _accepted(now.acceptance, num_drafted, random)
            draft_s, verify_s = (
                noise * each for each in (now.draft_s(num_drafted, num_ready), now.verify_s(num_drafted))
            )
            controller.told(num_drafted, accepted, draft_s=draft_s, verify_s=verify_s)
            if not num_ready:
                token_s = noise * now.draft_token_s
                controller.times.add_draft(token_s, num_drafted - 1, (num_drafted - 1) * token_s)
            goes_on = accepted == num_drafted and random.random() < now.acceptance
            num_ready = max(0, num_ready - num_drafted) + now.said_meanwhile(num_drafted) if goes_on else 0
            tokens, seconds = accepted + 1, draft_s + verify_s
        else:
            tokens, seconds, num_ready = 1, noise * now.step_s, 0
            controller.note(1, seconds, was_drafted=False)
        come, unscored, spent_s = come + tokens, unscored + tokens, spent_s + seconds
        was_by_rounds = was_by_rounds or num_drafted > 0
        if unscored >= _ANSWER:
            num_answers += not was_by_rounds
            is_scored = not was_by_rounds and is_worth_scoring(controller, num_answers)
            unscored, scored, was_by_rounds = 0, 0, False
            while is_scored and scored < _ANSWER:
                accepted = _accepted(now.acceptance, _MOST, random)
                controller.scored(accepted, _MOST)
                scored += accepted + 1
    return spent_s / come * now.num_tokens


def _pushed(controller: Controller, now: Conditions, random: Random) -> float:
    """Seconds of a part with pushed drafts."""
    spent_s, come, was_on, draft = 0.0, 0, False, PushedDraft(now, random)
    while come < now.num_tokens:
        is_on, noise = controller.is_on, random.lognormvariate(0, _NOISE)
        if is_on and not was_on:
            draft.begin()
        tokens, seconds = draft.step() if is_on else (1, now.step_s)
        controller.note(tokens, noise * seconds, was_drafted=is_on)
        come, spent_s, was_on = come + tokens, spent_s + noise * seconds, is_on
    return spent_s / come * now.num_tokens


def _run(way: str, seed: int) -> Run:
    random, controller = Random(seed), Controller()
    spent_s = alone_s = best_s = lost_s = lost_alone_s = 0.0
    for now in _conditions(Random(f"conditions {seed}")):
        if way == "rounds":
            seconds = _rounds(controller, now, random)
            drafted_s = now.best_s()
        else:
            seconds = _pushed(controller, now, random)
            drafted_s = PushedDraft(now, Random(seed)).token_s()
        alone = now.num_tokens * now.step_s
        spent_s, alone_s = spent_s + seconds, alone_s + alone
        best_s += now.num_tokens * min(drafted_s, now.step_s)
        if drafted_s >= now.step_s:
            lost_s, lost_alone_s = lost_s + seconds, lost_alone_s + alone
    return Run(spent_s, alone_s, best_s, lost_s, lost_alone_s)


def _figures(way: str, given: argparse.Namespace) -> dict[str, Any]:
    runs = [_run(way, given.seed + number) for number in range(given.runs)]
    spent_s, alone_s, best_s, lost_s, lost_alone_s = (sum(run[place] for run in runs) for place in range(5))
    return {
        "way": way,
        "seeds": f"{given.seed} to {given.seed + given.runs - 1}",
        "of_alone": spent_s / alone_s,
        "best_of_alone": best_s / alone_s,
        "regret": spent_s / best_s - 1,
        "where_none_pays": lost_s / max(lost_alone_s, 1e-9) - 1,
        "worst_run_of_alone": max(run.spent_s / run.alone_s for run in runs),
        "worst_run_regret": max(run.spent_s / run.best_s for run in runs) - 1,
    }


def main() -> int:
    """Simulate and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--runs", type=int, default=16, help="how many (default 16)")
    options.add_argument("--seed", type=int, default=1000, help="of the first run; 0 to 39 were tuned on")
    options.add_argument("--way", type=lambda text: text.split(","), default=["rounds", "push"], help="rounds, push")
    options.add_argument("--json", type=Path, help="a file for the figures")
    given = options.parse_args()
    found = []
    for way in given.way:
        found.append(figures := _figures(way, given))
        print(
            f"{way}, seeds {figures['seeds']}: {figures['of_alone']:.3f} of the time alone (best possible "
            f"{figures['best_of_alone']:.3f}), regret {figures['regret']:.1%}; where no draft pays "
            f"{figures['where_none_pays']:+.1%}; worst run {figures['worst_run_of_alone']:.3f} of alone, regret "
            f"{figures['worst_run_regret']:.1%}",
            flush=True,
        )
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

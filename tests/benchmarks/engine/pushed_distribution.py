"""Whether drawn answers keep their distribution with pushed drafts: chi-square over the first three tokens.

    python -m tests.benchmarks.engine.pushed_distribution [--runs 20000] [--rounds]

A tiny random model, temperature 1, the same eight tokens at each place; so many runs alone and as many, with other
seeds, onto which the likeliest continuation is pushed once the first token is there. Triples that are rare are counted
together. Then the same with faults planted into the sampler, each of which has to be found. `--rounds`: answers with
drafts are held after each step until theirs is there, as a session holds them.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backends.engine.choosing import sampling
from backends.engine.choosing.sampling import Choice
from backends.engine.engine import Engine
from backends.engine.request import Event, Request, SamplingParams
from tests.support.engine.chi_square import p_of
from tests.support.engine.tiny_pair import Listener, Pair, make_pair, options

_PROMPT = tuple(b"abab")
_EIGHT = dict.fromkeys(range(97, 105), 100.0)
_AT_ONCE = 64
_LEAST_P = 0.001
Triple = tuple[int, ...]


class _Pusher(Listener):
    """Pushes the likeliest two tokens behind each first one."""

    def __init__(self, engine: Engine, guesses: dict[int, Triple], *, by_rounds: bool) -> None:
        super().__init__()
        self._by_rounds = by_rounds
        self._engine = engine
        self._guesses = guesses

    def __call__(self, events: list[Event]) -> None:
        super().__call__(events)
        for event in events:
            tokens = self.answers[event.request_id].tokens()
            guess = self._guesses.get(tokens[0]) if tokens else None
            if guess is not None:
                self._engine.push(event.request_id, len(_PROMPT), [tokens[0], *guess], 64)
            if self._by_rounds and not event.is_last:
                self._engine.go_on(event.request_id, freely=False)


def _drawn(
    pair: Pair, seeds: range, guesses: dict[int, Triple], *, by_rounds: bool = False
) -> tuple[Counter[Triple], int]:
    """How often each triple came, and how many guesses were accepted."""
    engine = Engine(
        options(pair, max_sequences=_AT_ONCE, speculate_below=_AT_ONCE), now=lambda: 0.0, rng=random.Random(1)
    )
    engine.start()
    counts: Counter[Triple] = Counter()
    try:
        for first in range(seeds.start, seeds.stop, _AT_ONCE):
            listener = _Pusher(engine, guesses, by_rounds=by_rounds)
            batch = range(first, min(first + _AT_ONCE, seeds.stop))
            for seed in batch:
                params = SamplingParams(temperature=1.0, logit_bias=_EIGHT, max_tokens=3, seed=seed, ignore_eos=True)
                engine.submit(Request(id=str(seed), prompt=_PROMPT, params=params, by_rounds=by_rounds), listener)
            counts.update(tuple(listener.wait(str(seed)).tokens()) for seed in batch)
        return counts, engine.statistics().speculation.accepted["remote"]
    finally:
        engine.close()


def _one_too_many(found: list[Choice], sequences: list[Any]) -> list[Choice]:
    """The first guess that is not what was drawn is taken all the same."""
    return [
        Choice([*each.tokens[:-1], sequence.draft[each.num_accepted]], None, each.num_accepted)
        if each.num_accepted < len(sequence.draft)
        else each
        for each, sequence in zip(found, sequences, strict=True)
    ]


def _draft_goes_on(found: list[Choice], sequences: list[Any]) -> list[Choice]:
    """Behind guesses that were right stands what the draft would say, not what was drawn."""
    return [
        Choice([*each.tokens[:-1], sequence.draft[0]], None, each.num_accepted) if each.num_accepted else each
        for each, sequence in zip(found, sequences, strict=True)
    ]


@contextmanager
def _planted(fault: Callable[[list[Choice], list[Any]], list[Choice]] | None) -> Iterator[None]:
    """The sampler with a fault; None: every place is drawn with the noise of the first."""
    matched, rows = sampling._matched, sampling.Sampler._rows

    def broken(sequences: list[Any], tokens: list[int]) -> list[Choice]:
        found = matched(sequences, tokens)
        return found if fault is None else fault(found, sequences)

    def reused(self: Any, *args: Any, **named: Any) -> Any:
        made = rows(self, *args, **named)
        if fault is None:
            made.positions.fill_(int(made.positions.min()))
        return made

    sampling._matched, sampling.Sampler._rows = broken, reused  # type: ignore[method-assign]
    try:
        yield
    finally:
        sampling._matched, sampling.Sampler._rows = matched, rows  # type: ignore[method-assign]


def _guesses_of(alone: Counter[Triple]) -> dict[int, Triple]:
    found: dict[int, Triple] = {}
    for triple, _ in alone.most_common():
        found.setdefault(triple[0], triple[1:])
    return found


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20_000, help="alone, and again with drafts (default 20000)")
    parser.add_argument("--rounds", action="store_true", help="hold answers until their draft is there")
    given = parser.parse_args()
    faults = {"one too many": _one_too_many, "the draft goes on": _draft_goes_on, "noise used twice": None}
    way, is_right = "by rounds" if given.rounds else "pushed", True
    with tempfile.TemporaryDirectory() as folder:
        pair = make_pair(Path(folder))
        alone, _ = _drawn(pair, range(given.runs), {})
        guesses = _guesses_of(alone)
        pushed, accepted = _drawn(pair, range(given.runs, 2 * given.runs), guesses, by_rounds=given.rounds)
        p, freedom = p_of(alone, pushed)
        is_right &= p > _LEAST_P and accepted > 0
        print(
            f"{way}: p {p:.3f} of {freedom} degrees of freedom, {accepted} guesses accepted",
            flush=True,
        )
        for name, fault in faults.items():
            with _planted(fault):
                pushed, _ = _drawn(pair, range(given.runs, 2 * given.runs), guesses, by_rounds=given.rounds)
            p, _ = p_of(alone, pushed)
            is_right &= p < _LEAST_P
            print(f"planted, {name}: p {p:.2g}, {'found' if p < _LEAST_P else 'NOT FOUND'}", flush=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())

"""What `speculate: auto` costs where nothing can be guessed, and brings where much can: the embedded pair, in turns.

    python -m tests.benchmarks.engine.auto_speculation [--batches 1,8,16,32] [--temperatures 0,1] [--rounds 5]

One engine speculates by itself (`auto`, with its draft), one never does (`off`); both answer the same prompts, so many
at once. Unfavourable texts are random words that are to be quoted, more than the pair can: answers fall apart, and what
follows a pair of words follows by chance; or plain noise, tokens by chance. "wrong predictions" are the random words,
each with plain noise as its prediction. Favourable ones are the pair's own tasks.
What is printed is tokens a second over those without, the median over rounds, by the clock and by processor time; the
latter says more on a machine that does something else too. At T = 0 answers must be the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from threading import Event as Signal
from typing import NamedTuple

import backends.engine.demo_models as demo_models
from backends.engine.benchmark.own import own_engine
from backends.engine.demo_models.generator import TASK_NAMES, held_out_conversation
from backends.engine.demo_models.words import strange_text
from backends.engine.engine import Engine
from backends.engine.options import EngineOptions, Speculate
from backends.engine.request import Event, Request, SamplingParams

_LEAST_UNFAVOURABLE, _LEAST_PREDICTED, _LEAST_FAVOURABLE = 0.98, 0.97, 1.5
_NUM_WORDS = 120


class Kind(NamedTuple):
    """Prompts of one kind, and how their answers end."""

    name: str
    prompts: list[list[int]]
    ignores_end: bool
    least: float
    predictions: list[list[int]] | None = None


class Run(NamedTuple):
    """What one round of one engine came to."""

    answers: list[list[int]]
    wall_s: float
    cpu_s: float

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return sum(map(len, self.answers))


def _options(folder: Path, mode: Speculate) -> EngineOptions:
    return EngineOptions(
        model=folder / "target",
        draft=folder / "draft" if mode == "auto" else None,
        device="cpu",
        dtype="float32",
        threads=1,
        speculate=mode,
        kv_bytes=2**28,
    )


def _kinds(engine: Engine, number: int, seed: int) -> list[Kind]:
    rng = Random(seed)

    def tokens(messages: list[dict[str, str]]) -> list[int]:
        return engine.tokenizer.apply_chat_template(messages)

    words = [
        tokens([{"role": "user", "content": f"Repeat this word for word: {strange_text(rng, _NUM_WORDS)}"}])
        for _ in range(number)
    ]
    vocabulary = engine.tokenizer.vocab_size
    noise = [[rng.randrange(vocabulary) for _ in range(3 * _NUM_WORDS)] for _ in range(number)]
    tasks = [held_out_conversation(rng, TASK_NAMES[index % len(TASK_NAMES)]) for index in range(number)]
    return [
        Kind("random words", words, True, _LEAST_UNFAVOURABLE),
        Kind("noise", noise, True, _LEAST_UNFAVOURABLE),
        Kind("wrong predictions", words, True, _LEAST_PREDICTED, noise),
        Kind("own tasks", [tokens(task.messages()[:-1]) for task in tasks], False, _LEAST_FAVOURABLE),
    ]


_numbers = count()


def _run(engine: Engine, kind: Kind, batch: int, temperature: float, most: int) -> Run:
    """All prompts of a kind, `batch` at once and the next ones behind these; each is computed anew."""
    answers: list[list[int]] = [[] for _ in kind.prompts]
    wall, cpu = time.perf_counter(), time.process_time()
    for begin in range(0, len(kind.prompts), batch):
        numbers = range(begin, min(begin + batch, len(kind.prompts)))
        over, left, ids = Signal(), [len(numbers)], {}

        def take(events: list[Event], left: list[int] = left, ids: dict[str, int] = ids, over: Signal = over) -> None:
            for event in events:
                answers[ids[event.request_id]] += event.tokens
                left[0] -= event.is_last
            if not left[0]:
                over.set()

        for index in numbers:
            name = str(next(_numbers))
            ids[name] = index
            params = SamplingParams(temperature=temperature, max_tokens=most, ignore_eos=kind.ignores_end, seed=index)
            request = Request(
                id=name,
                prompt=tuple(kind.prompts[index]),
                params=params,
                salt=name.encode(),
                prediction=() if kind.predictions is None else tuple(kind.predictions[index]),
            )
            engine.submit(request, take)
        over.wait()
    return Run(answers, time.perf_counter() - wall, time.process_time() - cpu)


def _measure(engines: dict[str, Engine], kind: Kind, batch: int, temperature: float, given: argparse.Namespace) -> bool:
    """Prints one line of the table; whether it is as asked."""
    prompts = kind.prompts[: max(batch, given.prompts)]
    kind = kind._replace(prompts=prompts)
    wall, cpu, others = [], [], 0
    before = engines["auto"].statistics().speculation
    for number in range(given.rounds + 1):
        order = ("off", "auto") if number % 2 else ("auto", "off")
        runs = {name: _run(engines[name], kind, batch, temperature, given.max_tokens) for name in order}
        if not number:
            continue
        off, auto = runs["off"], runs["auto"]
        wall.append((auto.num_tokens / auto.wall_s) / (off.num_tokens / off.wall_s))
        cpu.append((auto.num_tokens / auto.cpu_s) / (off.num_tokens / off.cpu_s))
        if not temperature:
            others += sum(one != other for one, other in zip(off.answers, auto.answers, strict=True))
    after = engines["auto"].statistics().speculation
    proposed, accepted = (
        sum(getattr(after, name).values()) - sum(getattr(before, name).values()) for name in ("proposed", "accepted")
    )
    holds = median(cpu) >= kind.least and not others
    print(
        f"{kind.name:17} batch {batch:3}  T {temperature:g}  by clock {median(wall):5.3f} x  by processor time "
        f"{median(cpu):5.3f} x [{min(cpu):.3f}, {max(cpu):.3f}]  {accepted} of {proposed} accepted"
        + (f"  {others} answers came out otherwise" if others else ""),
        flush=True,
    )
    return holds


def _list(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--batches", type=_list, default=[1, 8, 16, 32], help="answers at once")
    options.add_argument("--temperatures", type=_list, default=[0, 1])
    options.add_argument("--kinds", default="random words,noise,wrong predictions,own tasks")
    options.add_argument("--rounds", type=int, default=5, help="how often each (default 5)")
    options.add_argument("--prompts", type=int, default=12, help="how many, or a batch if that is more (default 12)")
    options.add_argument("--max-tokens", type=int, default=160, help="of an answer (default 160)")
    options.add_argument("--seed", type=int, default=5, help="of the prompts")
    given = options.parse_args(arguments)
    folder = Path(demo_models.__path__[0])
    holds = True
    with ExitStack() as stack:
        engines = {mode: stack.enter_context(own_engine(_options(folder, mode))).engine for mode in ("off", "auto")}
        number = max(given.prompts, int(max(given.batches)))
        for kind in _kinds(engines["off"], number, given.seed):
            for batch in given.batches if kind.name in given.kinds.split(",") else ():
                for temperature in given.temperatures:
                    holds &= _measure(engines, kind, int(batch), temperature, given)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

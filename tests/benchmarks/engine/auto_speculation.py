"""What `speculate: auto` costs where nothing can be guessed, and brings where much can: the embedded pair, in turns.

    python -m tests.benchmarks.engine.auto_speculation [--batches 1,8,16,32] [--temperatures 0,1] [--rounds 5]

One engine speculates by itself (`auto`, with its draft), one never does (`off`); both answer the same prompts, so many
under way at all times. Unfavourable texts are random words that are to be quoted, more than the pair can: answers fall
apart, and what follows a pair of words follows by chance; or plain noise, tokens by chance. "wrong predictions" are the
random words, each with plain noise as its prediction. Favourable ones are the pair's own tasks.
What is printed is tokens a second of processor time over those without, and the least and most of a round. Both work
by turns of a tenth of a second, because what else a machine does takes many times what is looked for here. At T = 0
answers must be the same.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from threading import Condition
from threading import Event as Signal
from threading import enumerate as enumerate_threads
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
_MODES: tuple[Speculate, Speculate] = ("off", "auto")
_TURN_S = 0.1


class Kind(NamedTuple):
    """Prompts of one kind, and how their answers end."""

    name: str
    prompts: list[list[int]]
    ignores_end: bool
    least: float
    predictions: list[list[int]] | None = None


class Turns:
    """Lets engines work by turns, so that whatever else the machine does befalls all of them alike.

    Whoever has worked for its turn and tells it waits until the others have had theirs, or are through.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._waiting = list(names)
        self._change = Condition()
        self._began_s = time.perf_counter()

    def wait(self, name: str) -> None:
        """The engine has made a step."""
        with self._change:
            if self._waiting[0] == name and time.perf_counter() - self._began_s > _TURN_S:
                self._waiting.append(self._waiting.pop(0))
                self._hand_on()
            self._change.wait_for(lambda: self._waiting[0] == name)

    def leave(self, name: str) -> None:
        """The engine is through."""
        with self._change:
            self._waiting.remove(name)
            self._hand_on()

    def _hand_on(self) -> None:
        self._began_s = time.perf_counter()
        self._change.notify_all()


class Contestant:
    """A started engine and the processor time of its thread, in which all of its work is done."""

    def __init__(self, name: str, options: EngineOptions, stack: ExitStack) -> None:
        others = set(enumerate_threads())
        self.name = name
        self.engine = stack.enter_context(own_engine(options)).engine
        thread = next(one for one in enumerate_threads() if one not in others and one.name == "engine")
        assert thread.ident is not None, "it runs"
        self._clock = time.pthread_getcpuclockid(thread.ident)

    @property
    def cpu_s(self) -> float:
        """Since it was started."""
        return time.clock_gettime(self._clock)


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


class _Answering:
    """One engine at all prompts of a kind, each computed anew: `batch` at once, the next where one is through."""

    def __init__(self, one: Contestant, kind: Kind, batch: int, params: SamplingParams, turns: Turns) -> None:
        self.over = Signal()
        self._one = one
        self._kind = kind
        self._params = params
        self._turns = turns
        self._answers: dict[str, list[int]] = {}
        self._num_over = 0
        for _ in kind.prompts[:batch]:
            self._submit_next()

    @property
    def answers(self) -> list[list[int]]:
        """In the order of prompts."""
        return list(self._answers.values())

    def _submit_next(self) -> None:
        index, name = len(self._answers), str(next(_numbers))
        self._answers[name] = []
        predictions = self._kind.predictions
        request = Request(
            id=name,
            prompt=tuple(self._kind.prompts[index]),
            params=replace(self._params, seed=index),
            salt=name.encode(),
            prediction=() if predictions is None else tuple(predictions[index]),
        )
        self._one.engine.submit(request, self._take)

    def _take(self, events: list[Event]) -> None:
        """The engine's sink, in its thread."""
        for event in events:
            self._answers[event.request_id] += event.tokens
            self._num_over += event.is_last
            if event.is_last and len(self._answers) < len(self._kind.prompts):
                self._submit_next()
        if self._num_over < len(self._kind.prompts):
            self._turns.wait(self._one.name)
        elif not self.over.is_set():
            self._turns.leave(self._one.name)
            self.over.set()


def _round(
    contestants: Sequence[Contestant], kind: Kind, batch: int, params: SamplingParams
) -> dict[str, tuple[list[list[int]], float]]:
    """All prompts of a kind: answers and processor seconds of each engine."""
    began = {one.name: one.cpu_s for one in contestants}
    turns = Turns([one.name for one in contestants])
    running = [(one, _Answering(one, kind, batch, params, turns)) for one in contestants]
    for _, answering in running:
        answering.over.wait()
    return {one.name: (answering.answers, one.cpu_s - began[one.name]) for one, answering in running}


def _measure(off: Contestant, auto: Contestant, kind: Kind, batch: int, temperature: float, given: Namespace) -> bool:
    """Prints one line of the table; whether it is as asked."""
    kind = kind._replace(prompts=kind.prompts[: given.turnover * batch])
    params = SamplingParams(temperature=temperature, max_tokens=given.max_tokens, ignore_eos=kind.ignores_end)
    ratios, others, spent_s = [], 0, {off.name: 0.0, auto.name: 0.0}
    before = auto.engine.statistics().speculation
    for number in range(given.rounds + 1):
        found = _round((off, auto) if number % 2 else (auto, off), kind, batch, params)
        if not number:
            continue
        token_s = {name: cpu_s / sum(map(len, answers)) for name, (answers, cpu_s) in found.items()}
        for name in spent_s:
            spent_s[name] += token_s[name]
        ratios.append(token_s[off.name] / token_s[auto.name])
        if not temperature:
            others += sum(one != other for one, other in zip(found[off.name][0], found[auto.name][0], strict=True))
    after = auto.engine.statistics().speculation
    proposed, accepted = (
        sum(getattr(after, name).values()) - sum(getattr(before, name).values()) for name in ("proposed", "accepted")
    )
    gain = spent_s[off.name] / spent_s[auto.name]
    print(
        f"{kind.name:17} batch {batch:3}  T {temperature:g}  {gain:5.3f} x [{min(ratios):.3f}, {max(ratios):.3f}]  "
        f"{accepted} of {proposed} accepted" + (f"  {others} answers came out otherwise" if others else ""),
        flush=True,
    )
    return gain >= kind.least and not others


def _list(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--batches", type=_list, default=[1, 8, 16, 32], help="answers at once")
    options.add_argument("--temperatures", type=_list, default=[0, 1])
    options.add_argument("--kinds", default="random words,noise,wrong predictions,own tasks")
    options.add_argument("--rounds", type=int, default=5, help="how often each (default 5)")
    options.add_argument("--turnover", type=int, default=4, help="prompts for each that is under way (default 4)")
    options.add_argument("--max-tokens", type=int, default=160, help="of an answer (default 160)")
    options.add_argument("--seed", type=int, default=5, help="of the prompts")
    given = options.parse_args(arguments)
    folder = Path(demo_models.__path__[0])
    holds = True
    with ExitStack() as stack:
        off, auto = (Contestant(mode, _options(folder, mode), stack) for mode in _MODES)
        number = given.turnover * int(max(given.batches))
        for kind in _kinds(off.engine, number, given.seed):
            for batch in given.batches if kind.name in given.kinds.split(",") else ():
                for temperature in given.temperatures:
                    holds &= _measure(off, auto, kind, int(batch), temperature, given)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

"""What `speculate: auto` costs where nothing can be guessed, and brings where much can: the embedded pair, in turns.

    python -m tests.benchmarks.engine.auto_speculation [--batches 1,8,16,32] [--temperatures 0,1] [--starts 3]

One engine speculates by itself (`auto`, with its draft), one never does (`off`); both answer the same prompts, so many
under way at all times. Unfavourable texts are random words that are to be quoted, more than the pair can: answers fall
apart, and what follows a pair of words follows by chance; or plain noise, tokens by chance. "wrong predictions" are the
random words, each with plain noise as its prediction. Favourable are quotes: ten sentences of the pair's own words that
are to be repeated. Its own tasks are what it was made for: short answers of some 16 tokens, of which reading the prompt
is a third of the time. "right predictions" are the quotes, each with its answer as the prediction: the most that any
draft could bring.
What is printed is tokens a second of processor time over those without, and the least and most of a start. Both work
by turns of a tenth of a second, because what else a machine does takes many times what is looked for here; and both are
started anew several times, first the one and then the other, because of two that are alike one is up to 3 per cent
faster for its whole life, by where its memory lies. At T = 0 answers must be the same.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
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
from backends.engine.demo_models.words import sentences, strange_text
from backends.engine.options import EngineOptions, Speculate
from backends.engine.request import Event, Request, SamplingParams
from backends.engine.text.tokenizer import Tokenizer

_LEAST_UNFAVOURABLE, _LEAST_PREDICTED, _LEAST_FAVOURABLE = 0.98, 0.97, 1.5
_NUM_WORDS = 120
_NUM_SENTENCES = 10
_MODES: tuple[Speculate, Speculate] = ("off", "auto")
_TURN_S = 0.1


@dataclass(frozen=True, eq=False)
class Kind:
    """Prompts of one kind, and how their answers end."""

    name: str
    prompts: list[list[int]]
    ignores_end: bool
    least: float
    predictions: list[list[int]] | None = None
    predicts_itself: bool = False
    """Each prompt's prediction is its answer."""


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

    def __init__(self, name: Speculate, options: EngineOptions, stack: ExitStack) -> None:
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


def _kinds(tokenizer: Tokenizer, number: int, seed: int) -> list[Kind]:
    rng = Random(seed)

    def tokens(messages: list[dict[str, str]]) -> list[int]:
        return tokenizer.apply_chat_template(messages)

    words = [
        tokens([{"role": "user", "content": f"Repeat this word for word: {strange_text(rng, _NUM_WORDS)}"}])
        for _ in range(number)
    ]
    vocabulary = tokenizer.vocab_size
    noise = [[rng.randrange(vocabulary) for _ in range(3 * _NUM_WORDS)] for _ in range(number)]
    quotes = [
        tokens([{"role": "user", "content": f"Repeat after me: {' '.join(sentences(rng, _NUM_SENTENCES))}"}])
        for _ in range(number)
    ]
    tasks = [held_out_conversation(rng, TASK_NAMES[index % len(TASK_NAMES)]) for index in range(number)]
    return [
        Kind("random words", words, True, _LEAST_UNFAVOURABLE),
        Kind("noise", noise, True, _LEAST_UNFAVOURABLE),
        Kind("wrong predictions", words, True, _LEAST_PREDICTED, noise),
        Kind("right predictions", quotes, False, _LEAST_FAVOURABLE, predicts_itself=True),
        Kind("quotes", quotes, False, _LEAST_FAVOURABLE),
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
            params=replace(self._params, seed=index, max_tokens=_length(index, self._params.max_tokens)),
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
) -> dict[Speculate, tuple[list[list[int]], float]]:
    """All prompts of a kind: answers and processor seconds of each engine."""
    began = {one.name: one.cpu_s for one in contestants}
    turns = Turns([one.name for one in contestants])
    running = [(one, _Answering(one, kind, batch, params, turns)) for one in contestants]
    for _, answering in running:
        answering.over.wait()
    return {one.name: (answering.answers, one.cpu_s - began[one.name]) for one, answering in running}


def _length(index: int, mean: int) -> int:
    """Of an answer, half to one and a half times the mean: were all alike, those of the engine that never guesses would
    begin and end together, and its steps be full to the last.
    """
    return int(mean * (0.5 + Random(index).random()))


class Cell(NamedTuple):
    """A kind of prompts at a batch size and a temperature."""

    kind: Kind
    batch: int
    temperature: float

    @property
    def name(self) -> str:
        """As a line of the table begins."""
        return f"{self.kind.name:17} batch {self.batch:3}  T {self.temperature:g}"


@dataclass(slots=True)
class Found:
    """Of a cell: seconds a token of each engine at each start, and what came of guesses."""

    token_s: dict[Speculate, list[float]] = field(default_factory=lambda: {mode: [] for mode in _MODES})
    num_proposed: int = 0
    num_accepted: int = 0
    num_others: int = 0

    @property
    def gain(self) -> float:
        """Of all starts together."""
        off, auto = (sum(self.token_s[mode]) for mode in _MODES)
        return off / auto

    def __str__(self) -> str:
        gains = [off / auto for off, auto in zip(*self.token_s.values(), strict=True)]
        others = f"  {self.num_others} answers came out otherwise" if self.num_others else ""
        return (
            f"{self.gain:5.3f} x [{min(gains):.3f}, {max(gains):.3f}]  "
            f"{self.num_accepted} of {self.num_proposed} accepted{others}"
        )


def _measure(engines: Mapping[Speculate, Contestant], cell: Cell, given: Namespace, found: Found) -> None:
    """Adds what comes of a cell at this start."""
    kind = replace(cell.kind, prompts=cell.kind.prompts[: given.turnover * cell.batch])
    params = SamplingParams(temperature=cell.temperature, max_tokens=given.max_tokens, ignore_eos=cell.kind.ignores_end)
    spent_s, num_tokens = dict.fromkeys(_MODES, 0.0), dict.fromkeys(_MODES, 0)
    off, auto = (engines[mode] for mode in _MODES)
    before = auto.engine.statistics().speculation
    for number in range(given.rounds + 1):
        answered = _round((off, auto) if number % 2 else (auto, off), kind, cell.batch, params)
        if not number:
            if kind.predicts_itself:
                kind = replace(kind, predictions=answered["off"][0])
            continue
        for mode in _MODES:
            answers, cpu_s = answered[mode]
            spent_s[mode] += cpu_s
            num_tokens[mode] += sum(map(len, answers))
        if not cell.temperature:
            pairs = zip(*(answers for answers, _ in answered.values()), strict=True)
            found.num_others += sum(one != other for one, other in pairs)
    after = auto.engine.statistics().speculation
    found.num_proposed += sum(after.proposed.values()) - sum(before.proposed.values())
    found.num_accepted += sum(after.accepted.values()) - sum(before.accepted.values())
    for mode in _MODES:
        found.token_s[mode].append(spent_s[mode] / num_tokens[mode])


def _list(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--batches", type=_list, default=[1, 8, 16, 32], help="answers at once")
    options.add_argument("--temperatures", type=_list, default=[0, 1])
    options.add_argument("--kinds", default="random words,noise,wrong predictions,right predictions,quotes,own tasks")
    options.add_argument("--starts", type=int, default=3, help="of both engines (default 3)")
    options.add_argument("--rounds", type=int, default=2, help="how often each at a start (default 2)")
    options.add_argument("--turnover", type=int, default=4, help="prompts for each that is under way (default 4)")
    options.add_argument("--max-tokens", type=int, default=160, help="of an answer in the mean (default 160)")
    options.add_argument("--seed", type=int, default=5, help="of the prompts")
    given = options.parse_args(arguments)
    folder = Path(demo_models.__path__[0])
    number = given.turnover * int(max(given.batches))
    found = {
        Cell(kind, int(batch), temperature): Found()
        for kind in _kinds(Tokenizer(folder / "target"), number, given.seed)
        if kind.name in given.kinds.split(",")
        for batch in given.batches
        for temperature in given.temperatures
    }
    for start in range(given.starts):
        with ExitStack() as stack:
            modes = _MODES if start % 2 else _MODES[::-1]
            engines = {mode: Contestant(mode, _options(folder, mode), stack) for mode in modes}
            for cell, of_cell in found.items():
                _measure(engines, cell, given, of_cell)
                print(f"start {start + 1}: {cell.name}  {of_cell}", file=sys.stderr, flush=True)
    for cell, of_cell in found.items():
        print(f"{cell.name}  {of_cell}")
    is_as_asked = all(of.gain >= cell.kind.least and not of.num_others for cell, of in found.items())
    return 0 if is_as_asked else 1


if __name__ == "__main__":
    sys.exit(main())

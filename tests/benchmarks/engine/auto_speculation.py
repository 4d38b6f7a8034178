"""What `speculate: auto` costs where nothing can be guessed, and brings where much can: the embedded pair, in turns.

    python -m tests.benchmarks.engine.auto_speculation [--batches 1,8,16,32] [--temperatures 0,1] [--rounds 2]

The same prompts are answered twice, so many at once: by an engine that speculates by itself (`auto`, with its draft),
and by one that never does (`off`). Unfavourable texts are random words that are to be quoted, more than the pair can:
answers fall apart, and what follows a pair of words follows by chance; or plain noise, tokens by chance. "wrong
predictions" are the random words, each with plain noise as its prediction. Favourable are quotes: ten sentences of the
pair's own words that are to be repeated. Its own tasks are what it was made for: short answers of some 16 tokens, of
which reading the prompt is a third of the time. "right predictions" are the quotes, each with its answer as the
prediction: the most that any draft could bring.
What is printed is tokens a second of processor time over those without, its standard error, and the least and most of
a round. Both ways work by turns of a tenth of a second, because what else a machine does takes many times what is
looked for here. And they change places in the middle of each round: of two engines that are alike one is up to 8 per
cent faster for its whole life, by where its keys and values lie. At T = 0 answers must be the same.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from operator import ne
from pathlib import Path
from random import Random
from statistics import stdev
from typing import NamedTuple

import torch

import backends.engine.demo_models as demo_models
from backends.engine.demo_models.generator import TASK_NAMES, held_out_conversation
from backends.engine.demo_models.words import sentences, strange_text
from backends.engine.engine_core import EngineCore
from backends.engine.load import EngineParts, load_parts
from backends.engine.options import EngineOptions, Speculate
from backends.engine.request import Event, Request, SamplingParams
from backends.engine.speculation.speculate import Speculator
from backends.engine.text.tokenizer import Tokenizer

_LEAST_UNFAVOURABLE, _LEAST_PREDICTED, _LEAST_FAVOURABLE = 0.98, 0.97, 1.5
_NUM_WORDS = 120
_NUM_SENTENCES = 10
_TIMES_TASKS = 10
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
    times: int = 1
    """So many times the prompts of others, because answers are short."""


def _place(folder: Path) -> dict[Speculate, EngineCore]:
    """Two engines of one model and the same pages, of which one at a time may have work."""
    options = EngineOptions(
        model=folder / "target",
        draft=folder / "draft",
        device="cpu",
        dtype="float32",
        threads=1,
        speculate="auto",
        kv_bytes=2**28,
    )
    parts = load_parts(options, time.perf_counter)
    never = Speculator("off", None, most=options.max_draft, below=options.speculate_below, now=parts.work_clock)
    return {"off": _engine(replace(parts, speculator=never, draft=None)), "auto": _engine(parts)}


def _engine(parts: EngineParts) -> EngineCore:
    return EngineCore(parts, on_over=_forget, now=time.perf_counter, rng=Random(0))


def _forget(_: str) -> None:
    """Requests are counted by their events."""


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
    tasks = [held_out_conversation(rng, TASK_NAMES[index % len(TASK_NAMES)]) for index in range(_TIMES_TASKS * number)]
    return [
        Kind("random words", words, True, _LEAST_UNFAVOURABLE),
        Kind("noise", noise, True, _LEAST_UNFAVOURABLE),
        Kind("wrong predictions", words, True, _LEAST_PREDICTED, noise),
        Kind("right predictions", quotes, False, _LEAST_FAVOURABLE, predicts_itself=True),
        Kind("quotes", quotes, False, _LEAST_FAVOURABLE),
        Kind(
            "own tasks", [tokens(task.messages()[:-1]) for task in tasks], False, _LEAST_FAVOURABLE, times=_TIMES_TASKS
        ),
    ]


_numbers = count()


class _Answering:
    """All prompts of a kind, each computed anew: `batch` at once, the next where one is through. Answers have `mean`
    tokens on average, where nothing ends them before.
    """

    def __init__(self, engine: EngineCore, kind: Kind, batch: int, params: SamplingParams, mean: int) -> None:
        self._engine = engine
        self._kind = kind
        self._params = params
        self._mean = mean
        self._answers: dict[str, list[int]] = {}
        for _ in kind.prompts[:batch]:
            self._admit_next()

    @property
    def is_over(self) -> bool:
        """Whether all prompts are answered."""
        return not self._engine.has_work

    @property
    def answers(self) -> list[list[int]]:
        """In the order of prompts."""
        return list(self._answers.values())

    def turn(self) -> float:
        """Works for a tenth of a second; the processor seconds that it took."""
        began_s = now_s = time.thread_time()
        while now_s - began_s < _TURN_S and not self.is_over:
            self._engine.step()
            self._engine.deliver()
            now_s = time.thread_time()
        return now_s - began_s

    def _admit_next(self) -> None:
        index, name = len(self._answers), str(next(_numbers))
        self._answers[name] = []
        predictions = self._kind.predictions
        request = Request(
            id=name,
            prompt=tuple(self._kind.prompts[index]),
            params=replace(self._params, seed=index, max_tokens=_length(index, self._mean)),
            salt=name.encode(),
            prediction=() if predictions is None else tuple(predictions[index]),
        )
        self._engine.admit(request, self._take, time.perf_counter())

    def _take(self, events: list[Event]) -> None:
        for event in events:
            self._answers[event.request_id] += event.tokens
            if event.is_last and len(self._answers) < len(self._kind.prompts):
                self._admit_next()


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
    """Of a cell: seconds a token of each mode at each round, and what came of guesses."""

    token_s: dict[Speculate, list[float]] = field(default_factory=lambda: {mode: [] for mode in _MODES})
    num_proposed: int = 0
    num_accepted: int = 0
    num_others: int = 0

    @property
    def gain(self) -> float:
        """Of all rounds together."""
        off, auto = (sum(self.token_s[mode]) for mode in _MODES)
        return off / auto

    def __str__(self) -> str:
        gains = [off / auto for off, auto in zip(*self.token_s.values(), strict=True)]
        error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
        others = f"  {self.num_others} answers came out otherwise" if self.num_others else ""
        return (
            f"{self.gain:5.3f} x +- {error:.3f} [{min(gains):.3f}, {max(gains):.3f}]  "
            f"{self.num_accepted} of {self.num_proposed} accepted{others}"
        )


_Answers = dict[Speculate, list[list[int]]]


def _answer(running: Mapping[Speculate, _Answering], spent_s: dict[Speculate, float]) -> _Answers:
    """What each answers, by turns; adds the processor seconds of each."""
    with torch.inference_mode():
        while not all(one.is_over for one in running.values()):
            for mode, one in running.items():
                spent_s[mode] += one.turn()
    return {mode: one.answers for mode, one in running.items()}


def _measure(places: Sequence[Mapping[Speculate, EngineCore]], cell: Cell, given: Namespace) -> Found:
    """All rounds of a cell, behind one that does not count."""
    kind = replace(cell.kind, prompts=cell.kind.prompts[: cell.kind.times * given.turnover * cell.batch])
    params = SamplingParams(temperature=cell.temperature, ignore_eos=cell.kind.ignores_end)
    found = Found()
    for number in range(given.rounds + 1):
        spent_s, num_tokens = dict.fromkeys(_MODES, 0.0), dict.fromkeys(_MODES, 0)
        for first, second in (places, places[::-1]):
            engines = dict(zip(_MODES, (first["off"], second["auto"]), strict=True))
            running = {
                mode: _Answering(one, kind, cell.batch, params, given.max_tokens) for mode, one in engines.items()
            }
            before = engines["auto"].parts.speculator.statistics()
            answers = _answer(running, spent_s)
            after = engines["auto"].parts.speculator.statistics()
            for mode in _MODES:
                num_tokens[mode] += sum(map(len, answers[mode]))
            if number:
                found.num_proposed += sum(after.proposed.values()) - sum(before.proposed.values())
                found.num_accepted += sum(after.accepted.values()) - sum(before.accepted.values())
                found.num_others += 0 if cell.temperature else sum(map(ne, answers["off"], answers["auto"]))
            elif kind.predicts_itself:
                kind = replace(kind, predictions=answers["off"])
        if number:
            for mode in _MODES:
                found.token_s[mode].append(spent_s[mode] / num_tokens[mode])
    return found


def _list(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--batches", type=_list, default=[1, 8, 16, 32], help="answers at once")
    options.add_argument("--temperatures", type=_list, default=[0, 1])
    options.add_argument("--kinds", default="random words,noise,wrong predictions,right predictions,quotes,own tasks")
    options.add_argument("--rounds", type=int, default=2, help="twice the prompts each (default 2)")
    options.add_argument("--turnover", type=int, default=3, help="prompts for each that is under way (default 3)")
    options.add_argument("--max-tokens", type=int, default=160, help="of an answer in the mean (default 160)")
    options.add_argument("--seed", type=int, default=5, help="of the prompts")
    given = options.parse_args(arguments)
    folder = Path(demo_models.__path__[0])
    number = given.turnover * int(max(given.batches))
    torch.set_num_threads(1)
    places, is_as_asked = [_place(folder), _place(folder)], True
    for kind in _kinds(Tokenizer(folder / "target"), number, given.seed):
        if kind.name not in given.kinds.split(","):
            continue
        for batch in given.batches:
            for temperature in given.temperatures:
                cell = Cell(kind, int(batch), temperature)
                found = _measure(places, cell, given)
                print(f"{cell.name}  {found}", flush=True)
                is_as_asked &= found.gain >= kind.least and not found.num_others
    return 0 if is_as_asked else 1


if __name__ == "__main__":
    sys.exit(main())

"""What a step costs the host: scheduling, building, choosing and delivering, with a model that computes nothing.

    python -m tests.benchmarks.engine.host_cost [--steps 300] [--rounds 5]

Times are the engine thread's own processor time per step, from one delivery to the next, so neighbours on the machine
and waiting do not count; the best round of several. The second table times the sampler alone, on logits as peaked as
those of real models.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from backends.engine.choosing.sampling import Sampler
from backends.engine.engine import Engine
from backends.engine.kv.memory import KVCache
from backends.engine.load import EngineParts, load_parts
from backends.engine.model.decoder import Decoder
from backends.engine.options import EngineOptions
from backends.engine.request import Event, Request, SamplingParams
from backends.engine.sequence import Sequence as EngineSequence
from backends.engine.sequence import Slice
from backends.engine.step.batch import Batch
from backends.engine.step.runner import Runner
from kernels.paging import PagedKV
from tests.support.engine.tiny_pair import Listener, make_pair, options

VOCAB = 2048
CPU = torch.device("cpu")
STEP_LIMIT_US = 300
CHOOSE_LIMIT_US = 400


class IdleDecoder:
    """A decoder that answers with the same logits whatever it is asked."""

    max_positions = 512

    def __init__(self, config: Any, logits: Tensor) -> None:
        self.config = config
        self._logits = logits

    def forward(self, batch: Batch, kv: Sequence[PagedKV]) -> Tensor:
        """One number a row."""
        return batch.rows

    def logits(self, hidden: Tensor) -> Tensor:
        """The same for each row."""
        return self._logits[: len(hidden)].clone()


class Ear(Listener):
    """Notes the engine thread's processor time at two deliveries, and else does nothing until answers end.

    The clock and waking another thread cost as much as a step.
    """

    def __init__(self, first: int, last: int) -> None:
        super().__init__()
        self.times: dict[int, float] = {}
        self._noted = (first, last)
        self._count = 0

    def __call__(self, events: list[Event]) -> None:
        """Take a step's events."""
        self._count += 1
        if self._count in self._noted:
            self.times[self._count] = time.thread_time()
        if ends := [event for event in events if event.is_last]:
            super().__call__(ends)


def peaked_logits(rows: int, vocab_size: int = VOCAB) -> Tensor:
    """Falls with the logarithm of the rank, as language does; the likeliest token has about a third."""
    torch.manual_seed(1)
    falling = -1.5 * torch.arange(1, vocab_size + 1).log()
    return torch.stack([falling[torch.randperm(vocab_size)] for _ in range(rows)])


def idle(given: EngineOptions, now: Callable[[], float]) -> EngineParts:
    """An engine's parts with a model that computes nothing."""
    parts = load_parts(given, now)
    config = replace(parts.config, vocab_size=VOCAB)
    decoder = cast(Decoder, IdleDecoder(config, peaked_logits(64)))
    cache = KVCache(parts.config, 1, dtype=torch.float32, device=CPU)
    runner = Runner(decoder, cache, Sampler(VOCAB, CPU), device=CPU)
    return replace(parts, runner=runner)


def step_us(engine: Engine, params: SamplingParams, batch: int, num_steps: int) -> float:
    """The mean microseconds of a step with `batch` answers."""
    # The first steps read prompts, the last may have fewer answers.
    first, last = 10, num_steps - 10
    ear = Ear(first, last)
    params = replace(params, max_tokens=num_steps, ignore_eos=True)
    for number in range(batch):
        prompt = tuple(range(number, number + 130))
        engine.submit(Request(id=str(number), prompt=prompt, params=params, salt=bytes([number])), ear)
    for number in range(batch):
        ear.wait(str(number))
    return (ear.times[last] - ear.times[first]) / (last - first) * 1e6


def choose_us(params: dict[str, Any], num_drafts: int, *, rounds: int) -> float:
    """The best mean microseconds of the sampler for eight rows, with drafts that a draft model drew or without."""
    logits, proposal = peaked_logits(8), peaked_logits(8).roll(1, 0)
    sampler = Sampler(VOCAB, CPU)
    count = 8 // (1 + num_drafts)
    request = Request(id="r", prompt=(1, 2, 3), params=SamplingParams(**params))
    sequences = [EngineSequence(request, 0, 0, [1, 2, 3, 4], seed) for seed in range(count)]
    draft_probs: Any = None
    if num_drafts:
        tokens, probs = [], []
        for depth in range(num_drafts):
            drawn, drawn_from = sampler.draft(proposal[:count].clone(), sequences, depth)
            tokens.append(drawn)
            if drawn_from is not None:
                probs.append(drawn_from)
        for index, sequence in enumerate(sequences):
            sequence.draft = [int(drawn[index]) for drawn in tokens]
        draft_probs = dict(zip(sequences, torch.stack(probs, 1), strict=True)) if "seed" not in params else None
    slices = [Slice(sequence, 3, 1, num_drafts, True) for sequence in sequences]
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(50):
            sampler.choose(logits.clone(), slices, draft_probs)
        best = min(best, (time.thread_time() - began) / 50 * 1e6)
    return best


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kinds = {
        "greedy": SamplingParams(temperature=0.0),
        "temperature": SamplingParams(temperature=0.8, seed=1),
        "top-k, top-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=1),
    }
    with tempfile.TemporaryDirectory() as folder:
        pair = make_pair(Path(folder))
        engine = Engine(options(pair, max_sequences=64), load=idle)
        engine.start()
        try:
            print(f"| step, vocabulary {VOCAB} | 1 answer, us | 8 answers, us |\n| --- | --- | --- |")
            with torch.inference_mode():
                for name, params in kinds.items():
                    found = [
                        min(step_us(engine, params, batch, arguments.steps) for _ in range(arguments.rounds))
                        for batch in (1, 8)
                    ]
                    print(f"| {name} (at most {STEP_LIMIT_US} at 1) | {found[0]:.0f} | {found[1]:.0f} |")
        finally:
            engine.close()
    print("\n| choose, 8 rows | asked, us | measured, us |\n| --- | --- | --- |")
    cases: dict[str, tuple[dict[str, Any], int]] = {
        "greedy": ({"temperature": 0.0}, 0),
        "temperature": ({"temperature": 0.8}, 0),
        "top-k": ({"temperature": 0.8, "top_k": 50}, 0),
        "top-p": ({"temperature": 0.8, "top_p": 0.95}, 0),
        "top-k, top-p, min-p": ({"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02}, 0),
        "penalties": ({"temperature": 0.8, "repetition_penalty": 1.1, "presence_penalty": 0.5}, 0),
        "log-probabilities": ({"temperature": 0.8, "logprobs": 0}, 0),
        "verify, 2 x 3 drafts": ({"temperature": 0.8}, 3),
        "verify, top-p": ({"temperature": 0.8, "top_p": 0.95}, 3),
        "verify, top-p, seeded": ({"temperature": 0.8, "top_p": 0.95, "seed": 1}, 3),
    }
    with torch.inference_mode():
        for name, (settings, num_drafts) in cases.items():
            measured = choose_us(settings, num_drafts, rounds=4 * arguments.rounds)
            print(f"| {name} | <= {CHOOSE_LIMIT_US} | {measured:.0f} |")


if __name__ == "__main__":
    main()

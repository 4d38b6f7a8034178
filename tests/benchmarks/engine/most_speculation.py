"""What speculation could bring at best on this machine: guesses that cost nothing and are all accepted.

    python -m tests.benchmarks.engine.most_speculation [--batches 1,8,16,32] [--guesses 6] [--rounds 3]

A step that checks six guesses of each of n answers works on as many tokens as one that goes on with 7n answers. So as
many tokens a second as the embedded target makes for 7n answers at once, over those for n, is the most that any draft
can gain for n: about 1 where a step takes longer in proportion to its tokens, as on a processor whose time is all used.
In turn, the middle of all rounds.
"""

from __future__ import annotations

import argparse
from importlib import resources
from pathlib import Path
from random import Random
from statistics import median

from backends.engine.benchmark.own import own_engine
from backends.engine.demo_models.generator import TASK_NAMES, held_out_conversation
from backends.engine.options import EngineOptions
from backends.engine.text.tokenizer import Tokenizer

_NUM_TOKENS = 64


def main() -> None:
    """Prints a line for each number of answers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 16, 32])
    parser.add_argument("--guesses", type=int, default=6, help="of each answer in a step (default 6)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each (default 3)")
    given = parser.parse_args()
    folder = Path(str(resources.files("backends.engine.demo_models"))) / "target"
    rows = 1 + given.guesses
    most = rows * max(given.batches)
    rng, tokenizer = Random(5), Tokenizer(folder)
    tasks = [held_out_conversation(rng, TASK_NAMES[index % len(TASK_NAMES)]) for index in range(most)]
    prompts = [tokenizer.apply_chat_template(task.messages()[:-1]) for task in tasks]
    options = EngineOptions(
        model=folder, device="cpu", dtype="float32", threads=1, speculate="off", max_sequences=most, kv_bytes=2**30
    )
    with own_engine(options) as engine:
        for batch in given.batches:
            found: dict[int, list[float]] = {batch: [], rows * batch: []}
            for _ in range(given.rounds):
                for number, rates in found.items():
                    rates.append(engine.generate(prompts[:number], _NUM_TOKENS))
            alone, checked = (median(rates) for rates in found.values())
            print(
                f"{batch:3} answers: {alone:6.0f} tokens a second, {rows * batch:3} answers: {checked:6.0f}; "
                f"at best {checked / alone:.2f} x",
                flush=True,
            )


if __name__ == "__main__":
    main()

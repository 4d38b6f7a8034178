"""What paging, scheduling and events cost over a plain loop on the same weights."""

from __future__ import annotations

from functools import partial

from backends.engine.benchmark.bf16 import NUM_PROMPT, NUM_TOKENS
from backends.engine.benchmark.contender import Contender, engine, plain_loop
from backends.engine.benchmark.figure import Figure, Setting, at_most, medians, ratio, take_turns
from backends.engine.benchmark.made_model import random_prompts
from backends.engine.options import EngineOptions


def measure(setting: Setting) -> list[Figure]:
    """The engine's time over the loop's, in bf16 at batch 1 and 8, prompt and answer."""
    figures = []
    threads = setting.threads
    options = EngineOptions(model=setting.folder, device="cpu", threads=threads, speculate="off")
    with (
        Contender(engine(options), threads=threads) as own,
        Contender(plain_loop(setting.folder), threads=threads) as plain,
    ):
        for batch in (1, 8):
            prompts = random_prompts(batch, NUM_PROMPT, batch)
            runs = {
                "engine": partial(own.generate, prompts, NUM_TOKENS),
                "plain loop": partial(plain.generate, prompts, NUM_TOKENS),
            }
            results = take_turns(setting, runs, say=f"paging and scheduling, batch {batch}, tok/s")
            name = f"paging and scheduling, batch {batch}: time over a plain loop"
            figures.append(at_most(name, 1.15, ratio(results, "plain loop", "engine"), medians(results)))
    return figures

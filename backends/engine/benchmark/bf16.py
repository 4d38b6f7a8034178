"""Tokens a second in bf16, beside transformers' `generate`."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from backends.engine.benchmark.contender import Contender, engine, peer
from backends.engine.benchmark.figure import (
    BenchmarkFigure,
    MeasurementSetting,
    PeerMissing,
    at_least,
    medians,
    ratio,
    skipped,
    take_turns,
)
from backends.engine.benchmark.made_model import random_prompts
from backends.engine.benchmark.peers import transformers_generate
from backends.engine.options import EngineOptions

NUM_PROMPT, NUM_TOKENS = 64, 48
_ASKED = {1: 1.2, 8: 1.4}


def measure(setting: MeasurementSetting) -> list[BenchmarkFigure]:
    """At batch 1 and 8: 64 tokens of prompt, 48 of answer, both in the time."""
    threads = setting.threads
    options = EngineOptions(model=setting.folder, device="cpu", threads=threads, speculate="off")
    figures = []
    with ExitStack() as stack:
        try:
            theirs = stack.enter_context(
                Contender(peer(partial(transformers_generate, setting.folder)), threads=threads)
            )
        except PeerMissing as missing:
            return [skipped(_name(batch), f">= {asked:g} x", str(missing)) for batch, asked in _ASKED.items()]
        own = stack.enter_context(Contender(engine(options), threads=threads))
        for batch, asked in _ASKED.items():
            prompts = random_prompts(batch, NUM_PROMPT, batch)
            runs = {
                "own": partial(own.generate, prompts, NUM_TOKENS),
                "transformers": partial(theirs.generate, prompts, NUM_TOKENS),
            }
            results = take_turns(setting, runs, say=f"bf16, batch {batch}, tok/s")
            figures.append(at_least(_name(batch), asked, ratio(results, "own", "transformers"), medians(results)))
    return figures


def _name(batch: int) -> str:
    return f"bf16, batch {batch}: over transformers generate"

"""Tokens a second in int8, beside ctranslate2 (int8) and llama.cpp (q8_0)."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from backends.engine.benchmark.bf16 import NUM_PROMPT, NUM_TOKENS
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
from backends.engine.benchmark.peers import ctranslate2_generate, llama_cpp_generate
from backends.engine.options import EngineOptions

_ASKED = {1: {"llama.cpp q8_0": 0.6}, 8: {"ctranslate2 int8": 1.0, "llama.cpp q8_0": 1.4}}


def measure(setting: MeasurementSetting) -> list[BenchmarkFigure]:
    """At batch 1 and 8: 64 tokens of prompt, 48 of answer, both in the time."""
    options = EngineOptions(
        model=setting.folder, device="cpu", threads=setting.threads, quantization="int8", speculate="off"
    )
    figures: list[BenchmarkFigure] = []
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as work, ExitStack() as stack:
        own = stack.enter_context(Contender(engine(options), threads=setting.threads))
        peers, missing = _peers(setting, Path(work), stack)
        for batch, asked in _ASKED.items():
            prompts = random_prompts(batch, NUM_PROMPT, batch)
            runs = {"own": partial(own.generate, prompts, NUM_TOKENS)}
            runs |= {name: partial(peers[name].generate, prompts, NUM_TOKENS) for name in asked if name in peers}
            results = take_turns(setting, runs, say=f"int8, batch {batch}, tok/s") if len(runs) > 1 else {}
            for name, least in asked.items():
                title = f"int8, batch {batch}: over {name}"
                if name in peers:
                    figures.append(at_least(title, least, ratio(results, "own", name), medians(results)))
                else:
                    figures.append(skipped(title, f">= {least:g} x", missing[name]))
    return figures


def _peers(
    setting: MeasurementSetting, work: Path, stack: ExitStack
) -> tuple[dict[str, Contender[float]], dict[str, str]]:
    """(those that are installed, why the others are not there), by name."""
    threads = setting.threads
    make = {
        "ctranslate2 int8": partial(ctranslate2_generate, setting.folder, work / "ctranslate2", threads=threads),
        "llama.cpp q8_0": partial(llama_cpp_generate, setting.folder, work, threads=threads, most=8),
    }
    peers: dict[str, Contender[float]] = {}
    missing: dict[str, str] = {}
    for name, made in make.items():
        try:
            peers[name] = stack.enter_context(Contender(peer(made), threads=threads))
        except PeerMissing as error:
            missing[name] = str(error)
    return peers, missing

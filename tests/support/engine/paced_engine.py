"""`type: mine`, an engine whose steps take as long as they are told to, and which may say other tokens than it would.

For benchmarks: a large model's step times on a small one, and drafts that are wrong as often as is wanted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from backends.clock import Clock
from backends.engine import engine as engines
from backends.engine.load import EngineParts, load_parts
from backends.engine.options import EngineOptions
from backends.registry import Kind
from backends.serving import kind
from backends.serving.served_engine import EngineBackend
from backends.serving.settings import EngineConfig

PLUGIN = "from tests.support.engine.paced_engine import KIND\n"
"""The source of the package for `tests.support.plugin`."""


class PacedConfig(EngineConfig):
    """An engine's settings, the least time of a step, and the share of tokens that are replaced by another one."""

    step_ms: float = 0
    spoil: float = 0


class _PacedEngine(engines.Engine):
    pace = PacedConfig(model="slipstream-target")

    def __init__(self, options: EngineOptions) -> None:
        pace = type(self).pace

        def load(options: EngineOptions, now: Callable[[], float]) -> EngineParts:
            # What a step sleeps takes no processor time, so steps go by a clock that is not the machine's own.
            parts = load_parts(options, partial(now))
            _slow(parts, pace.step_ms / 1e3, pace.spoil)
            return parts

        super().__init__(options, load=load)


def _slow(parts: EngineParts, step_s: float, spoil: float) -> None:
    run, rng, vocab_size = parts.runner.run, Random(1), parts.config.vocab_size

    def paced(*args: Any) -> Any:
        began = time.perf_counter()
        choices = run(*args)
        if spoil:
            choices = [
                each
                and replace(
                    each,
                    tokens=[(token + 1) % vocab_size if rng.random() < spoil else token for token in each.tokens],
                )
                for each in choices
            ]
        time.sleep(max(0.0, step_s - (time.perf_counter() - began)))
        return choices

    parts.runner.run = paced  # type: ignore[method-assign, assignment]


def _build(name: str, config: PacedConfig, clock: Clock) -> EngineBackend:
    engines.Engine = type("_Paced", (_PacedEngine,), {"pace": config})  # type: ignore[misc, assignment]
    return kind.build(name, config, clock)


KIND = Kind(config=PacedConfig, build=_build)


def plugin_environment(environ: dict[str, str]) -> dict[str, str]:
    """The environment of `plugin`, in which the tests can be imported too."""
    root = str(Path(__file__).parents[3])
    return {**environ, "PYTHONPATH": f"{environ['PYTHONPATH']}:{root}"}

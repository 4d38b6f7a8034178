"""What paging, scheduling and events cost over a plain loop on the same weights.

The two make their steps in turn (see `side_by_side.py`): with a process and half a second at a time for each, on a
machine whose speed changes within seconds, four runs gave from 1.03 to 1.29.

The engine's step is timed from where the loop's has ended to where its events arrive, the first one from where the
requests may come in: it holds their admission, scheduling, the model, the choice, text and events. The loop's holds
the model and the likeliest token of each row. Each finds the caches full of the other's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

from backends.engine.benchmark.bf16 import NUM_PROMPT, NUM_TOKENS
from backends.engine.benchmark.contender import Contender, Make
from backends.engine.benchmark.figure import BenchmarkFigure, MeasurementSetting, at_most, take_turns
from backends.engine.benchmark.made_model import random_prompts
from backends.engine.benchmark.side_by_side import StepTimes, side_by_side
from backends.engine.options import EngineOptions


def measure(setting: MeasurementSetting) -> list[BenchmarkFigure]:
    """The engine's time over the loop's, in bf16 at batch 1 and 8, prompt and answer."""
    options = EngineOptions(model=setting.folder, device="cpu", threads=setting.threads, speculate="off")
    make: Make[StepTimes] = partial(side_by_side, options)
    figures = []
    with Contender(make, threads=setting.threads) as both:
        for batch in (1, 8):
            prompts = random_prompts(batch, NUM_PROMPT, batch)
            rounds: list[StepTimes] = []

            def run(prompts: list[list[int]] = prompts, rounds: list[StepTimes] = rounds) -> float:
                rounds.append(both.generate(prompts, NUM_TOKENS))
                return rounds[-1].ratio

            take_turns(setting, {"engine over loop": run}, say=f"paging and scheduling, batch {batch}")
            # The first one warmed up.
            del rounds[0]
            name = f"paging and scheduling, batch {batch}: time over a plain loop"
            figures.append(at_most(name, 1.15, overhead(rounds), _detail(rounds)))
    return figures


def overhead(rounds: Sequence[StepTimes]) -> float:
    """The engine's time over the loop's: of each step the median over the rounds, long steps counting for more.

    A step that the machine did not let run costs one ratio of many then, and not the whole.
    """
    engines: list[tuple[float, ...]] = list(zip(*(found.engine for found in rounds), strict=True))
    loops: list[tuple[float, ...]] = list(zip(*(found.loop for found in rounds), strict=True))
    weights = [median(loop) for loop in loops]
    ratios = [
        median(one / other for one, other in zip(engine, loop, strict=True))
        for engine, loop in zip(engines, loops, strict=True)
    ]
    return sum(weight * ratio for weight, ratio in zip(weights, ratios, strict=True)) / sum(weights)


def _detail(rounds: Sequence[StepTimes]) -> str:
    engine_ms = median(step for found in rounds for step in found.engine[1:]) * 1000
    loop_ms = median(step for found in rounds for step in found.loop[1:]) * 1000
    ratios = [found.ratio for found in rounds]
    return (
        f"a token in {engine_ms:.1f} and {loop_ms:.1f} ms; whole answers in {len(rounds)} rounds "
        f"{min(ratios):.2f} to {max(ratios):.2f} x"
    )

"""How much sooner an answer begins whose prompt shares a long beginning with one before."""

from __future__ import annotations

from itertools import count

from backends.engine.benchmark.figure import BenchmarkFigure, MeasurementSetting, at_most, medians, ratio, take_turns
from backends.engine.benchmark.made_model import random_prompts
from backends.engine.benchmark.own import own_engine
from backends.engine.options import EngineOptions

_NUM_SHARED, _NUM_OWN = 2000, 32


def measure(setting: MeasurementSetting) -> list[BenchmarkFigure]:
    """Time to first token, the second request's over the first's: 2,000 tokens shared, 32 of its own."""
    (shared,) = random_prompts(1, _NUM_SHARED, 0)
    first_end, second_end = random_prompts(2, _NUM_OWN, 1)
    # A prefix is shared within one salt, and a new one makes every round's first request the first of its kind.
    rounds, repeated = count(), count()
    options = EngineOptions(model=setting.folder, device="cpu", threads=setting.threads, speculate="off")
    with own_engine(options) as own:

        def first() -> float:
            return own.answer(shared + first_end, num_tokens=1, salt=b"%d" % next(rounds))[1]

        def second() -> float:
            return own.answer(shared + second_end, num_tokens=1, salt=b"%d" % next(repeated))[1]

        results = take_turns(setting, {"first": first, "second": second}, say="prefix cache, TTFT in s")
    name = "prefix cache, 2,000 tokens shared: TTFT over the first's"
    return [at_most(name, 0.15, ratio(results, "second", "first"), medians(results, "s"))]

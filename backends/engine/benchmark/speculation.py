"""What speculation brings on the embedded pair: greedy, one request at a time, beside the target alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from backends.engine.benchmark.figure import (
    BenchmarkFigure,
    MeasurementSetting,
    at_least,
    medians,
    ratio,
    skipped,
    take_turns,
)
from backends.engine.benchmark.own import OwnEngine, own_engine
from backends.engine.demo_models.generator import TASK_NAMES, held_out_conversation
from backends.engine.options import EngineOptions, Speculate

_LOOKUP_TASKS = ("quoting", "rewriting")
_PROMPTS_A_TASK = 3
_MOST_TOKENS = 160


class _Case(NamedTuple):
    name: str
    asked: float
    mode: Speculate
    tasks: Sequence[str]


_CASES = (
    _Case("speculation, all tasks: over the target alone", 1.5, "auto", TASK_NAMES),
    _Case("draft model alone, all tasks: over the target alone", 1.5, "draft", TASK_NAMES),
    _Case("prompt lookup, quoting and rewriting: over the target alone", 1.8, "ngram", _LOOKUP_TASKS),
)


def measure(setting: MeasurementSetting) -> list[BenchmarkFigure]:
    """Tokens a second with and without drafts, on prompts that the pair has never seen; answers must be the same."""
    if setting.pair is None:
        why = "the embedded models are not there; see docs/demo-models.md"
        return [skipped(case.name, f">= {case.asked:g} x", why) for case in _CASES]
    return [_measured(setting, setting.pair, case) for case in _CASES]


def _measured(setting: MeasurementSetting, pair: Path, case: _Case) -> BenchmarkFigure:
    with ExitStack() as stack:
        engines = {
            "alone": stack.enter_context(own_engine(_options(setting, pair, "off"))),
            case.mode: stack.enter_context(own_engine(_options(setting, pair, case.mode))),
        }
        prompts = _prompts(engines["alone"], case.tasks)
        asking = {name: _Asking(engine, prompts) for name, engine in engines.items()}
        results = take_turns(setting, {name: one.run for name, one in asking.items()}, say=f"{case.mode}, tok/s")
        pairs = list(zip(asking["alone"].answers, asking[case.mode].answers, strict=True))
        num_other = sum(alone != drafted for alone, drafted in pairs)
        speculation = engines[case.mode].engine.statistics().speculation
    proposed, accepted = sum(speculation.proposed.values()), sum(speculation.accepted.values())
    detail = f"{medians(results)}; {accepted} of {proposed} drafts accepted"
    figure = at_least(case.name, case.asked, ratio(results, case.mode, "alone"), detail)
    if not num_other:
        return figure
    return replace(figure, holds=False, detail=f"{detail}; {num_other} of {len(pairs)} answers came out otherwise")


def _options(setting: MeasurementSetting, pair: Path, mode: Speculate) -> EngineOptions:
    # In bf16 a row's logits depend on how many rows are computed with it, in the last of their few bits: near ties
    # then fall otherwise, and 2 of 6 answers differed. In float32 none did, at the same speed.
    return EngineOptions(
        model=pair / "target",
        draft=pair / "draft" if mode in ("auto", "draft") else None,
        device="cpu",
        dtype="float32",
        threads=setting.threads,
        speculate=mode,
        kv_bytes=2**27,
    )


def _prompts(own: OwnEngine, tasks: Sequence[str]) -> list[list[int]]:
    rng = Random(1)
    conversations = [held_out_conversation(rng, task) for task in tasks for _ in range(_PROMPTS_A_TASK)]
    return [own.engine.tokenizer.apply_chat_template(one.messages()[:-1]) for one in conversations]


class _Asking:
    """All prompts one after the other; keeps the latest answers."""

    def __init__(self, own: OwnEngine, prompts: list[list[int]]) -> None:
        self.answers: list[list[int]] = []
        self._own, self._prompts = own, prompts

    def run(self) -> float:
        """Tokens a second, prompts included in the time."""
        answers, seconds = [], 0.0
        for number, prompt in enumerate(self._prompts):
            answer, _, took = self._own.answer(prompt, num_tokens=_MOST_TOKENS, salt=b"%d" % number)
            answers.append(answer)
            seconds += took
        self.answers = answers
        return sum(map(len, answers)) / seconds
